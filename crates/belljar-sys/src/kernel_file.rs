//! Reads files that the kernel makes (`/proc`, control groups): one large read, since their size is not known before.
//!
//! `std::fs::read` asks for the size, is told 0, and reads 32 bytes, 32, 64, …: eight calls for a mount table, at
//! every start several times.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// More than most such files have.
const SMALL: usize = 4096;
/// More than the others have, on most hosts.
const FIRST_LARGE: usize = 32 * 1024;

pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_open(File::open(path)?)
}

pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// From where the file stands to its end.
pub fn read_open(file: File) -> io::Result<Vec<u8>> {
    // On the stack first: callers keep what most of these files hold, and not the room for more.
    let mut small = [0; SMALL];
    let mut have = 0;
    while have < SMALL {
        match rustix::io::read(&file, &mut small[have..]) {
            Ok(0) => return Ok(small[..have].to_vec()),
            Ok(read) => have += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut text = Vec::with_capacity(FIRST_LARGE);
    text.extend_from_slice(&small);
    loop {
        match rustix::io::read(&file, spare_capacity(&mut text)) {
            Ok(0) => return Ok(text),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if text.len() == text.capacity() {
            text.reserve(text.len());
        }
    }
}

/// The number in a file that has nothing else, such as a limit: one read is enough.
pub fn read_number(directory: BorrowedFd<'_>, path: impl rustix::path::Arg) -> io::Result<u64> {
    let file = openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; 32];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut text))?;
    let text = std::str::from_utf8(&text[..length]).map(str::trim_end);
    text.ok().and_then(|text| text.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_files_of_every_size() {
        let path = std::env::temp_dir().join(format!("belljar-kernel-file-{}", std::process::id()));
        for size in [0, 1, SMALL - 1, SMALL, SMALL + 1, FIRST_LARGE, 5 * FIRST_LARGE + 7] {
            let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            std::fs::write(&path, &content).unwrap();
            assert_eq!(read(&path).unwrap(), content);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_number_is_read_and_anything_else_refused() {
        let number = read_number(rustix::fs::CWD, "/proc/sys/kernel/pid_max").unwrap();
        assert_eq!(read_text("/proc/sys/kernel/pid_max").unwrap().trim(), number.to_string());
        let refused = read_number(rustix::fs::CWD, "/proc/version").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        let missing = read_number(rustix::fs::CWD, "/proc/sys/kernel/nothing").unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_of_the_kernel_is_read_as_std_reads_it() {
        assert_eq!(read("/proc/version").unwrap(), std::fs::read("/proc/version").unwrap());
        assert!(read_text("/proc/self/mountinfo").unwrap().ends_with('\n'));
    }
}
