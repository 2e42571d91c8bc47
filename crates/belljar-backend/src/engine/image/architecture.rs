//! Whether an image's programs can run on the engine's machine. Emulation does not count: PID 1 and the
//! system call filter are for the machine as it is.

use crate::error::ImageError;

/// One name for each, as images have it. Engines also use the kernel's.
fn common(name: &str) -> &str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "armv6l" | "armv7l" | "armhf" => "arm",
        "i386" | "i686" => "386",
        other => other,
    }
}

/// An image without an architecture counts as the engine's.
pub(super) fn check(name: &str, os: &str, image: &str, engine: &str) -> Result<(), ImageError> {
    if !os.is_empty() && os != "linux" {
        return Err(ImageError {
            why: format!("the image \"{name}\" is for {os}, and a sandbox is Linux"),
            fix: "use an image for Linux".to_owned(),
        });
    }
    if image.is_empty() || engine.is_empty() || common(image) == common(engine) {
        return Ok(());
    }
    let (image, engine) = (common(image), common(engine));
    Err(ImageError {
        why: format!(
            "the image \"{name}\" is for {image}, and the engine's machine is {engine}; emulated \
             programs would run past the system call filter"
        ),
        fix: format!("use an image for linux/{engine}, or an engine on a machine with {image}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_by_another_name_is_the_same() {
        for (image, engine) in [("amd64", "x86_64"), ("arm64", "aarch64"), ("", "x86_64")] {
            assert_eq!(check("x", "linux", image, engine), Ok(()));
        }
        let error = check("x", "linux", "arm64", "x86_64").unwrap_err();
        assert!(error.why.contains("is for arm64, and the engine's machine is amd64"), "{error:?}");
        assert!(check("x", "windows", "amd64", "amd64").unwrap_err().why.contains("for windows"));
    }
}
