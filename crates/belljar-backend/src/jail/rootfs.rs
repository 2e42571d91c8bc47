//! The lists of paths that the sandbox's root directory is made of.

use belljar_spec::{
    Access, AccountsFile, MountKind, OsText, PlannedMount, Presence, Rootfs, RunSpec, Source, Tree,
};

use crate::backend::ImageFacts;
use crate::egress;

/// Programs and libraries. On a system where these are links into `/usr`, they become links.
const SYSTEM_DIRECTORIES: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];

/// Large or full of links: bound as they are.
const ETC_BOUND: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/pki/tls",
    "/etc/pki/ca-trust",
    "/etc/fonts",
    "/etc/java-17-openjdk",
    "/etc/java-21-openjdk",
];

/// Small files that programs look for and that contain nothing about the host's users.
const ETC_COPIED: &[&str] = &[
    "/etc/localtime",
    "/etc/timezone",
    "/etc/os-release",
    "/etc/protocols",
    "/etc/services",
    "/etc/bash.bashrc",
    "/etc/profile",
    "/etc/ssl/openssl.cnf",
];

const NSSWITCH: &str = "/etc/nsswitch.conf";

/// Where systems keep the authorities that programs trust, each in one file.
const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

pub(super) fn mounts(
    rootfs: &Rootfs,
    image: Option<&ImageFacts>,
    hostname: &str,
) -> Vec<PlannedMount> {
    match rootfs {
        Rootfs::Image => from_image(image, hostname),
        Rootfs::Host => from_host(hostname),
        Rootfs::Directory { path } => vec![PlannedMount {
            target: OsText::from("/"),
            what: MountKind::RootDirectory { source: path.clone() },
        }],
    }
}

/// The image as it is, but for what tells programs who and where they are.
fn from_image(image: Option<&ImageFacts>, hostname: &str) -> Vec<PlannedMount> {
    let root = image.map(|image| PlannedMount {
        target: OsText::from("/"),
        what: MountKind::RootImage { manifest: image.id.clone(), layers: image.layers.clone() },
    });
    let is_images_own = |mount: &PlannedMount| mount.target == OsText::from(NSSWITCH);
    let made = made_for_the_run(hostname).into_iter().filter(|mount| !is_images_own(mount));
    root.into_iter().chain(made).collect()
}

fn from_host(hostname: &str) -> Vec<PlannedMount> {
    let bound = SYSTEM_DIRECTORIES.iter().chain(ETC_BOUND).map(|path| system(path, path));
    let copied = ETC_COPIED.iter().map(|path| PlannedMount {
        target: OsText::from(*path),
        what: MountKind::Copy { source: OsText::from(*path) },
    });
    bound.chain(copied).chain(made_for_the_run(hostname)).collect()
}

fn system(source: &str, target: &str) -> PlannedMount {
    PlannedMount {
        target: OsText::from(target),
        what: MountKind::Bind {
            source: Source::Path { path: OsText::from(source) },
            access: Access::ReadOnly,
            presence: Presence::IfPresent,
            tree: Tree::System,
        },
    }
}

fn made_for_the_run(hostname: &str) -> Vec<PlannedMount> {
    let accounts = [("/etc/passwd", AccountsFile::Passwd), ("/etc/group", AccountsFile::Group)];
    let accounts = accounts.map(|(path, file)| PlannedMount {
        target: OsText::from(path),
        what: MountKind::Accounts { file },
    });
    let hosts = format!("127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost\n");
    let files = [
        ("/etc/hosts", hosts),
        ("/etc/hostname", format!("{hostname}\n")),
        (NSSWITCH, "passwd: files\ngroup: files\nhosts: files\n".to_owned()),
        ("/etc/resolv.conf", "# No name server answers here.\n".to_owned()),
    ]
    .into_iter()
    .map(|(path, content)| PlannedMount {
        target: OsText::from(path),
        what: MountKind::File { content },
    });
    accounts.into_iter().chain(files).collect()
}

/// The run's own authority, in place of the system's own list.
pub(super) fn trust_bundles(spec: &RunSpec) -> impl Iterator<Item = PlannedMount> {
    let bundles = if spec.intercepts() { SYSTEM_BUNDLES } else { &[] };
    bundles.iter().map(|path| egress::own(path, Source::RunTrustBundle, Presence::IfPresent))
}
