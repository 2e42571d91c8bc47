//! Reads files that the kernel makes (`/proc`, control groups): one large read, since their size is not known before.
//!
//! `std::fs::read` asks for the size, is told 0, and reads 32 bytes, 32, 64, …: eight calls for a mount table, at
//! every start several times.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than most such files have.
const FIRST_READ: usize = 16 * 1024;

pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_open(File::open(path)?)
}

pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// From where the file stands to its end.
pub fn read_open(mut file: File) -> io::Result<Vec<u8>> {
    let mut text = vec![0; FIRST_READ];
    let mut have = 0;
    loop {
        match file.read(&mut text[have..]) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if have == text.len() {
            text.resize(have * 2, 0);
        }
    }
    text.truncate(have);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_files_of_every_size() {
        let path = std::env::temp_dir().join(format!("belljar-kernel-file-{}", std::process::id()));
        for size in [0, 1, FIRST_READ - 1, FIRST_READ, FIRST_READ + 1, 5 * FIRST_READ + 7] {
            let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            std::fs::write(&path, &content).unwrap();
            assert_eq!(read(&path).unwrap(), content);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_of_the_kernel_is_read_as_std_reads_it() {
        assert_eq!(read("/proc/version").unwrap(), std::fs::read("/proc/version").unwrap());
        assert!(read_text("/proc/self/mountinfo").unwrap().ends_with('\n'));
    }
}
