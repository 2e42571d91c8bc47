//! Makes the image of a canary run: one empty directory. Belljar itself is mounted into every container, so a canary
//! needs no other image and no network.

use bollard::query_parameters::CreateImageOptionsBuilder;
use bytes::Bytes;
use futures_util::TryStreamExt;

use super::api::{Api, ApiError, QUICK_TIMEOUT};

/// Podman names what it imports `latest`, whatever name it is given; the number is of its content.
const REPOSITORY: &str = "localhost/belljar/canary-1";
const NAME: &str = "localhost/belljar/canary-1:latest";

/// Made if the engine has not got it.
pub(super) fn image(api: &Api) -> Result<&'static str, ApiError> {
    match api.wait("look for the canary's image", QUICK_TIMEOUT, api.docker.inspect_image(NAME)) {
        Ok(_) => return Ok(NAME),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    let from =
        CreateImageOptionsBuilder::new().from_src("-").repo(REPOSITORY).tag("latest").build();
    let content = bollard::body_full(Bytes::from(archive()));
    let import = api.docker.create_image(Some(from), Some(content), None);
    api.wait("make the canary's image", QUICK_TIMEOUT, import.try_for_each(|_| async { Ok(()) }))?;
    Ok(NAME)
}

/// A tar archive of one directory, `tmp/`.
fn archive() -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut header = [0_u8; BLOCK];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, b"tmp/");
    put(100, b"0001777\0");
    put(108, b"0000000\0"); // root's
    put(116, b"0000000\0");
    put(124, b"00000000000\0");
    put(136, b"00000000000\0");
    put(148, b"        "); // as which the sum counts itself
    put(156, b"5");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.resize(3 * BLOCK, 0); // two empty ones end it
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_one_directory_with_a_right_sum() {
        let archive = archive();
        assert_eq!(archive.len(), 1536);
        let stored = std::str::from_utf8(&archive[148..154]).map(|sum| u32::from_str_radix(sum, 8));
        let mut header = archive[..512].to_vec();
        header[148..156].fill(b' ');
        assert_eq!(stored, Ok(Ok(header.iter().map(|byte| u32::from(*byte)).sum())));
    }
}
