//! Copies belljar's executable into a container on another machine, which cannot bind it from here.
//!
//! It goes into a volume of the container's own, which ends with it: the root is read-only from the
//! beginning, and takes nothing. The volume has to be writable to be filled; what is in it belongs to
//! root, and the command never is.

use std::io;
use std::path::Path;
use std::time::Duration;

use bollard::query_parameters::UploadToContainerOptionsBuilder;

use super::api::{Api, ApiError};
use super::container_config::INIT_DIRECTORY;

/// A slow connection needs minutes.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("cannot read {}", .0)]
    Read(String, #[source] io::Error),
    #[error(transparent)]
    Api(#[from] ApiError),
}

pub(super) fn init(api: &Api, container: &str, executable: &Path) -> Result<(), UploadError> {
    let content = std::fs::read(executable)
        .map_err(|error| UploadError::Read(executable.display().to_string(), error))?;
    let archive = archive("init", &content);
    let options = UploadToContainerOptionsBuilder::new().path(INIT_DIRECTORY).build();
    let body = bollard::body_full(archive.into());
    let sending = api.docker.upload_to_container(container, Some(options), body);
    Ok(api.wait("copy belljar into the container", UPLOAD_TIMEOUT, sending)?)
}

/// A tar archive with one file, which all users can read and execute, and none can write.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut head = [0; BLOCK];
    let mut put =
        |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000555\0");
    put(108, "0000000\0"); // uid
    put(116, "0000000\0"); // gid
    put(124, &format!("{:011o}\0", content.len()));
    put(136, "00000000000\0"); // changed
    put(148, "        "); // the sum is made over spaces in its own place
    put(156, "0"); // a file
    put(257, "ustar\x0000");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = Vec::with_capacity(content.len() + 4 * BLOCK);
    archive.extend(head);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    fn tar(options: &[&str], archive: &[u8]) -> Vec<u8> {
        let mut child = Command::new("tar")
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let archive = archive.to_vec();
        let writer = std::thread::spawn(move || input.write_all(&archive));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(output.status.success(), "{options:?}: {}", output.status);
        output.stdout
    }

    #[test]
    fn the_system_s_tar_reads_the_archive() {
        for length in [0, 1, 511, 512, 513, 100_000] {
            let content: Vec<u8> = (0..length).map(|number: u32| number as u8).collect();
            let made = archive("init", &content);
            assert_eq!(made.len() % 512, 0);
            assert_eq!(tar(&["-xO", "init"], &made), content);
            let listed = String::from_utf8(tar(&["-tv", "--numeric-owner"], &made)).unwrap();
            assert!(listed.starts_with("-r-xr-xr-x 0/0"), "{listed}");
        }
    }
}
