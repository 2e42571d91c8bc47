//! Any archive, unpacked as a layer over another one: nothing outside the target is touched, and what was made can
//! be removed. Run: `cargo +nightly fuzz run layer`.
#![no_main]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use belljar_image::{
    Digest, ExpectedLayer, OverlayForm, Ownership, PrivilegedBits, UnpackLimits, UnpackOptions,
    unpack_layer,
};
use belljar_tree::{Dir, FinalLink};
use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 512;
const CANARY: &str = "must not change";

fuzz_target!(|data: &[u8]| {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        base.join(format!("belljar-fuzz-layer-{}", std::process::id()))
    });
    let Some((first, rest)) = data.split_first() else { return };
    let archive = match first % 4 {
        0 => raw(rest),
        _ => structured(rest),
    };
    let canary = place.join("outside/canary");
    prepare(place, &canary);
    let before = fs::metadata(&canary).unwrap();
    let target = Dir::open(place.join("target"), FinalLink::Refuse).unwrap();
    let lower = Dir::open(place.join("lower"), FinalLink::Refuse).unwrap();
    let options = UnpackOptions {
        form: OverlayForm::User,
        ownership: Ownership::Single,
        privileged_bits: if first & 4 == 0 { PrivilegedBits::Keep } else { PrivilegedBits::Strip },
        limits: UnpackLimits {
            entries: 500,
            layer_bytes: 1 << 20,
            file_bytes: 1 << 18,
            depth: 40,
            ..UnpackLimits::default()
        },
    };
    let expected = ExpectedLayer { diff_id: Digest::of(&archive) };
    // Whether it is taken is the tests' business.
    let _ = unpack_layer(&archive[..], &target, &[lower], expected, &options);
    let after = fs::metadata(&canary).unwrap();
    assert_eq!(fs::read_to_string(&canary).unwrap(), CANARY);
    assert_eq!(fs::read_dir(place.join("outside")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(place).unwrap().count(), 3);
    assert_eq!(
        (before.ino(), before.mode(), before.nlink(), before.mtime(), before.ctime_nsec()),
        (after.ino(), after.mode(), after.nlink(), after.mtime(), after.ctime_nsec()),
    );
    let parent = Dir::open(place, FinalLink::Refuse).unwrap();
    parent.remove_contents("target").unwrap();
});

fn prepare(place: &Path, canary: &Path) {
    fs::create_dir_all(place.join("outside")).unwrap();
    fs::create_dir_all(place.join("target")).unwrap();
    fs::create_dir_all(place.join("lower/a/b")).unwrap();
    fs::write(place.join("lower/a/f"), "below").unwrap();
    if fs::read(canary).ok().as_deref() != Some(CANARY.as_bytes()) {
        fs::write(canary, CANARY).unwrap();
    }
}

/// The bytes as they are, with checksums that are right.
fn raw(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    for block in bytes.chunks_exact_mut(BLOCK) {
        if block.iter().any(|byte| *byte != 0) {
            set_checksum(block);
        }
    }
    bytes
}

/// Each entry is a byte for its kind, one for each of two paths, one for the mode, one for a PAX record, and data
/// with a byte for its length.
fn structured(mut data: &[u8]) -> Vec<u8> {
    const PATHS: [&str; 24] = [
        "a", "a/b", "a/b/c", "l", "l/x", "a/l", "a/l/canary", "..", "../outside/canary", "/a", "./",
        "a/../b", ".wh.a", "a/.wh.f", ".wh..wh..opq", "a/.wh..wh..opq", "f", "a/f", "../outside",
        "/", "l/../f", ".wh.", "a/.wh.b/c", "d/d/d/d/d/d",
    ];
    const KINDS: &[u8] = b"00025551122346xSLKg7";
    const RECORDS: [&str; 12] = [
        "path=a/b", "path=../outside/canary", "linkpath=../outside/canary", "size=5", "size=99999",
        "SCHILY.xattr.user.overlay.opaque=y", "SCHILY.xattr.user.x=y", "GNU.sparse.map=0,1,2,1",
        "GNU.sparse.realsize=100", "GNU.sparse.major=1", "mtime=-1.5", "uid=99999999999",
    ];
    let mut archive = Vec::new();
    while let [kind, path, link, mode, record, length, rest @ ..] = data {
        let (content, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        let kind = KINDS[usize::from(*kind) % KINDS.len()];
        let mut content = content.to_vec();
        if kind == b'x' {
            let text = RECORDS[usize::from(*record) % RECORDS.len()];
            let mut length = text.len() + 3;
            while length.to_string().len() + text.len() + 2 != length {
                length += 1;
            }
            content = format!("{length} {text}\n").into_bytes();
        }
        let mut header = [0_u8; BLOCK];
        let path = PATHS[usize::from(*path) % PATHS.len()].as_bytes();
        let link = PATHS[usize::from(*link) % PATHS.len()].as_bytes();
        header[..path.len()].copy_from_slice(path);
        header[157..157 + link.len()].copy_from_slice(link);
        let mode = u32::from(*mode) * 16;
        header[100..108].copy_from_slice(format!("{mode:07o}\0").as_bytes());
        header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        set_checksum(&mut header);
        archive.extend(header);
        if !(b'1'..=b'6').contains(&kind) {
            archive.extend(&content);
            archive.resize(archive.len().next_multiple_of(BLOCK), 0);
        }
    }
    archive
}

fn set_checksum(header: &mut [u8]) {
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
