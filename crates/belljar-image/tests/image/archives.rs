//! Makes tar archives, hostile ones included, and images of them.

use belljar_image::Digest;
use serde_json::json;

const BLOCK: usize = 512;

/// One entry, every field as it is to stand in the header.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: u8,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: u64,
    pub(crate) link: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// In the header, whatever the data is.
    pub(crate) size: Option<u64>,
    pub(crate) pax: Vec<(String, Vec<u8>)>,
}

impl Entry {
    fn new(path: impl AsRef<[u8]>, kind: u8, mode: u32) -> Self {
        Self {
            path: path.as_ref().to_vec(),
            kind,
            mode,
            uid: 0,
            gid: 0,
            mtime: 1_600_000_000,
            link: Vec::new(),
            data: Vec::new(),
            size: None,
            pax: Vec::new(),
        }
    }

    pub(crate) fn file(path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        Self { data: data.as_ref().to_vec(), ..Self::new(path, b'0', 0o644) }
    }

    pub(crate) fn dir(path: impl AsRef<[u8]>) -> Self {
        Self::new(path, b'5', 0o755)
    }

    pub(crate) fn symlink(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Self { link: target.as_ref().to_vec(), ..Self::new(path, b'2', 0o777) }
    }

    pub(crate) fn hard_link(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Self { link: target.as_ref().to_vec(), ..Self::new(path, b'1', 0o644) }
    }

    pub(crate) fn special(path: impl AsRef<[u8]>, kind: u8) -> Self {
        Self::new(path, kind, 0o644)
    }

    pub(crate) fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub(crate) fn owner(self, uid: u64, gid: u64) -> Self {
        Self { uid, gid, ..self }
    }

    pub(crate) fn pax(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax.push((key.to_owned(), value.as_ref().to_vec()));
        self
    }
}

/// Bytes of an archive, with the blocks that end it.
pub(crate) fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = open_tar(entries);
    bytes.extend([0; 2 * BLOCK]);
    bytes
}

/// The same without an end.
pub(crate) fn open_tar(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        let mut pax = entry.pax.clone();
        let mut path = entry.path.clone();
        if path.len() > 100 {
            pax.push(("path".to_owned(), path.clone()));
            path.truncate(100);
        }
        if !pax.is_empty() {
            let text: Vec<u8> = pax.iter().flat_map(|(key, value)| record(key, value)).collect();
            let header =
                Entry { kind: b'x', data: text, pax: Vec::new(), ..Entry::file("pax", "") };
            put(&mut bytes, &header, b"pax");
        }
        put(&mut bytes, entry, &path);
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, entry: &Entry, path: &[u8]) {
    let mut header = [0_u8; BLOCK];
    header[..path.len()].copy_from_slice(path);
    let link = &entry.link[..entry.link.len().min(100)];
    header[157..157 + link.len()].copy_from_slice(link);
    octal(&mut header[100..108], u64::from(entry.mode));
    octal(&mut header[108..116], entry.uid);
    octal(&mut header[116..124], entry.gid);
    octal(&mut header[124..136], entry.size.unwrap_or(entry.data.len() as u64));
    octal(&mut header[136..148], entry.mtime);
    header[156] = entry.kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    bytes.extend(header);
    bytes.extend(&entry.data);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
}

/// In the binary form where it is too large for digits.
fn octal(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    let text = format!("{value:0digits$o}\0");
    match text.len() == field.len() {
        true => field.copy_from_slice(text.as_bytes()),
        false => {
            field[0] = 0x80;
            let bytes = value.to_be_bytes();
            let from = field.len().saturating_sub(8).max(1);
            let tail = field.len() - from;
            field[from..].copy_from_slice(&bytes[8 - tail..]);
        }
    }
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let body = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
    let mut length = body.len() + 1;
    while length.to_string().len() + body.len() != length {
        length += 1;
    }
    [length.to_string().as_bytes(), &body].concat()
}

/// A configuration for layers with these uncompressed contents.
pub(crate) fn config(layers: &[Vec<u8>]) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
    let architecture = belljar_image::Platform::of_this_machine().architecture;
    json!({
        "os": "linux", "architecture": architecture, "created": "2026-01-02T03:04:05Z",
        "config": {
            "Env": ["PATH=/bin", "A=b"], "Entrypoint": ["/entry"], "Cmd": ["one", "two"],
            "WorkingDir": "/srv", "User": "1000:1000", "Volumes": {"/data": {}},
            "Labels": {"k": "v"}
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids}
    })
    .to_string()
    .into_bytes()
}

/// An archive as `docker save` of docker 20.10 writes it.
pub(crate) fn docker_archive(tags: &[&str], layers: &[Vec<u8>]) -> Vec<u8> {
    let config = config(layers);
    let config_name = format!("{}.json", Digest::of(&config).hex());
    let mut entries = Vec::new();
    let mut paths = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let name = format!("{number:064}");
        entries.push(Entry::dir(format!("{name}/")));
        entries.push(Entry::file(format!("{name}/VERSION"), "1.0"));
        entries.push(Entry::file(format!("{name}/layer.tar"), layer));
        paths.push(format!("{name}/layer.tar"));
    }
    entries.push(Entry::file(&config_name, &config));
    let manifest = json!([{"Config": config_name, "RepoTags": tags, "Layers": paths}]);
    entries.push(Entry::file("manifest.json", manifest.to_string()));
    tar(&entries)
}

/// The files of an OCI layout with one image, by path. Layers are stored as `stored` has them.
pub(crate) fn oci_layout(
    name: Option<&str>,
    layers: &[Vec<u8>],
    stored: impl Fn(&[u8]) -> Vec<u8>,
) -> Vec<(String, Vec<u8>)> {
    let mut files = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
    let mut blob = |bytes: Vec<u8>, media_type: &str| {
        let digest = Digest::of(&bytes);
        let descriptor =
            json!({"mediaType": media_type, "digest": digest.to_string(), "size": bytes.len()});
        files.push((format!("blobs/sha256/{}", digest.hex()), bytes));
        descriptor
    };
    let config = blob(config(layers), "application/vnd.oci.image.config.v1+json");
    let layers: Vec<_> = layers
        .iter()
        .map(|layer| blob(stored(layer), "application/vnd.oci.image.layer.v1.tar+gzip"))
        .collect();
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let mut manifest =
        blob(manifest.to_string().into_bytes(), "application/vnd.oci.image.manifest.v1+json");
    if let Some(name) = name {
        manifest["annotations"] = json!({"io.containerd.image.name": name});
    }
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    files.push(("index.json".to_owned(), index.to_string().into_bytes()));
    files
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}
