//! Names of system calls by their number, for the processor that this was built for.

/// Sorted by number.
const CALL_NAMES: &[(u32, &str)] = include!(concat!(env!("OUT_DIR"), "/call_names.rs"));

pub(crate) fn call_name(number: u32) -> Option<&'static str> {
    let at = CALL_NAMES.binary_search_by_key(&number, |(number, _)| *number).ok()?;
    Some(CALL_NAMES[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_their_names() {
        for (number, name) in [
            (libc::SYS_mount, "mount"),
            (libc::SYS_openat, "openat"),
            (libc::SYS_io_uring_setup, "io_uring_setup"),
            (libc::SYS_clone3, "clone3"),
        ] {
            assert_eq!(call_name(number as u32), Some(name));
        }
        assert_eq!(call_name(100_000), None);
        assert!(CALL_NAMES.is_sorted_by(|one, next| one.0 < next.0));
    }
}
