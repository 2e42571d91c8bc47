//! Images made on the spot, as archives of `docker save` and as OCI layouts. Their programs are this machine's own, with
//! the libraries that these need, so that no image has to be fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

/// What the scripts of tests call.
const PROGRAMS: &[&str] = &[
    "sh", "cat", "env", "head", "id", "ls", "mkdir", "readlink", "rm", "sleep", "stat", "touch",
    "true",
];

/// One layer, entry by entry.
#[derive(Default)]
pub struct TestLayer {
    entries: Vec<(String, Entry)>,
}

enum Entry {
    Directory { mode: u32, owner: u64 },
    File { content: Vec<u8>, mode: u32, owner: u64 },
    Link { to: String },
}

impl TestLayer {
    /// The programs, an `/etc` with a user `web` (33), and files of root and of that user.
    pub fn base() -> Self {
        let mut layer = Self::default().directory("etc", 0o755, 0).directory("srv", 0o750, 33);
        layer = layer
            .file("etc/passwd", "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/:/bin/sh\n")
            .file("etc/group", "root:x:0:\nweb:x:34:\n")
            .file("etc/of-the-image", "yes\n")
            .owned_file("srv/of-web", "web's\n", 0o640, 33)
            .owned_file("private", "root's\n", 0o600, 0);
        let mut made = BTreeSet::new();
        // Where all programs are one, as with busybox, it is in the image once.
        let mut first: BTreeMap<PathBuf, String> = BTreeMap::new();
        for (path, source) in programs() {
            for above in Path::new(&path).ancestors().skip(1).collect::<Vec<_>>().iter().rev() {
                let above = above.to_str().unwrap();
                if !above.is_empty() && made.insert(above.to_owned()) {
                    layer = layer.directory(above, 0o755, 0);
                }
            }
            if let Some(same) = first.get(&source) {
                layer = layer.link(&path, &format!("/{same}"));
                continue;
            }
            first.insert(source.clone(), path.clone());
            let content = fs::read(&source).unwrap();
            layer.entries.push((path, Entry::File { content, mode: 0o755, owner: 0 }));
        }
        layer
    }

    #[must_use]
    pub fn directory(mut self, path: &str, mode: u32, owner: u64) -> Self {
        self.entries.push((path.to_owned(), Entry::Directory { mode, owner }));
        self
    }

    #[must_use]
    pub fn file(self, path: &str, content: &str) -> Self {
        self.owned_file(path, content, 0o644, 0)
    }

    #[must_use]
    pub fn owned_file(mut self, path: &str, content: &str, mode: u32, owner: u64) -> Self {
        let content = content.as_bytes().to_vec();
        self.entries.push((path.to_owned(), Entry::File { content, mode, owner }));
        self
    }

    #[must_use]
    pub fn link(mut self, path: &str, to: &str) -> Self {
        self.entries.push((path.to_owned(), Entry::Link { to: to.to_owned() }));
        self
    }

    /// Removes what a layer below has there.
    #[must_use]
    pub fn without(self, path: &str) -> Self {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let slash = if above.is_empty() { "" } else { "/" };
        self.file(&format!("{above}{slash}.wh.{name}"), "")
    }

    fn archive(&self) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = tar::Header::new_ustar();
            let (kind, mode, owner, content): (_, _, _, &[u8]) = match entry {
                Entry::Directory { mode, owner } => (tar::EntryType::Directory, *mode, *owner, &[]),
                Entry::File { content, mode, owner } => {
                    (tar::EntryType::Regular, *mode, *owner, content)
                }
                Entry::Link { to } => {
                    header.set_link_name(to).unwrap();
                    (tar::EntryType::Symlink, 0o777, 0, &[])
                }
            };
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(owner);
            header.set_gid(owner);
            header.set_mtime(1);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content).unwrap();
        }
        archive.into_inner().unwrap()
    }
}

/// An image: layers, bottom first, and the inner part of its configuration.
pub struct TestImage {
    pub name: String,
    pub layers: Vec<TestLayer>,
    pub config: Value,
}

impl TestImage {
    pub fn new(name: &str, layers: Vec<TestLayer>) -> Self {
        Self { name: name.to_owned(), layers, config: json!({}) }
    }

    #[must_use]
    pub fn config(self, config: Value) -> Self {
        Self { config, ..self }
    }

    /// As `docker save` writes it.
    pub fn docker_archive(&self) -> Vec<u8> {
        let layers: Vec<Vec<u8>> = self.layers.iter().map(TestLayer::archive).collect();
        let config = self.config_document(&layers);
        let names: Vec<String> = (0..layers.len()).map(|at| format!("{at}/layer.tar")).collect();
        let manifest =
            json!([{ "Config": "config.json", "RepoTags": [self.name], "Layers": names }]);
        let mut files: BTreeMap<String, Vec<u8>> = names.iter().cloned().zip(layers).collect();
        files.insert("config.json".into(), config);
        files.insert("manifest.json".into(), manifest.to_string().into_bytes());
        let mut archive = tar::Builder::new(Vec::new());
        for (path, content) in &files {
            let mut header = tar::Header::new_ustar();
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content.as_slice()).unwrap();
        }
        archive.into_inner().unwrap()
    }

    /// As a directory, which is made.
    pub fn write_oci_layout(&self, directory: &Path) {
        let blobs = directory.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        let blob = |media_type: &str, content: &[u8]| {
            let name = sha256(content);
            fs::write(blobs.join(&name), content).unwrap();
            json!({
                "mediaType": media_type,
                "digest": format!("sha256:{name}"),
                "size": content.len(),
            })
        };
        let layers: Vec<Vec<u8>> = self.layers.iter().map(TestLayer::archive).collect();
        let config =
            blob("application/vnd.oci.image.config.v1+json", &self.config_document(&layers));
        let layers: Vec<Value> = layers
            .iter()
            .map(|layer| blob("application/vnd.oci.image.layer.v1.tar", layer))
            .collect();
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": config,
            "layers": layers,
        });
        let mut manifest = blob(media_type, manifest.to_string().as_bytes());
        manifest["annotations"] = json!({ "io.containerd.image.name": self.name });
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(directory.join("index.json"), index.to_string()).unwrap();
        fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }

    fn config_document(&self, layers: &[Vec<u8>]) -> Vec<u8> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let ids: Vec<String> =
            layers.iter().map(|layer| format!("sha256:{}", sha256(layer))).collect();
        let document = json!({
            "architecture": architecture,
            "os": "linux",
            "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": ids },
        });
        document.to_string().into_bytes()
    }
}

fn sha256(content: &[u8]) -> String {
    let mut text = String::new();
    for byte in digest(&SHA256, content).as_ref() {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// The programs and their libraries: where each is in the image, and which file of this machine it is.
fn programs() -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    for name in PROGRAMS {
        let place = ["/bin", "/usr/bin"].iter().map(|place| Path::new(place).join(name));
        let found = place.clone().find(|path| path.exists());
        let found = found.unwrap_or_else(|| panic!("this machine has no {name}"));
        for library in libraries(&found) {
            let inside = library.to_str().unwrap().trim_start_matches('/').to_owned();
            files.insert(inside, library);
        }
        files.insert(format!("bin/{name}"), found);
    }
    // A link in the middle of a path would be one of the image, which a layer's path does not go through.
    files.into_iter().map(|(inside, source)| (inside, fs::canonicalize(source).unwrap())).collect()
}

/// None of a static program.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let Ok(listed) = Command::new("ldd").arg(program).output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    let files = words.map(|word| PathBuf::from(word.trim_end_matches(':')));
    files
        .filter(|path| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.size() > 0))
        .collect()
}

impl super::Lab {
    /// Writes an image's archive into the lab, and loads it into the store of the lab's home.
    pub fn load_image(&self, image: &TestImage) {
        let path = self.path("image.tar");
        fs::File::create(&path).unwrap().write_all(&image.docker_archive()).unwrap();
        self.belljar(["image", "load", path.to_str().unwrap()]).done().expect(0);
    }
}
