//! System call numbers by name, for every call that the filter names on this processor.

const NUMBERS: &[(&str, i64)] = include!(concat!(env!("OUT_DIR"), "/numbers.rs"));

pub(crate) fn number_of(name: &str) -> Option<i64> {
    NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

pub(crate) fn is_named(number: i64) -> bool {
    NUMBERS.iter().any(|(_, known)| *known == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_c_librarys() {
        for (name, number) in [
            ("mount", libc::SYS_mount),
            ("bpf", libc::SYS_bpf),
            ("keyctl", libc::SYS_keyctl),
            ("io_uring_setup", libc::SYS_io_uring_setup),
            ("setns", libc::SYS_setns),
            ("prlimit64", libc::SYS_prlimit64),
            ("fchmodat2", libc::SYS_fchmodat2),
            ("read", libc::SYS_read),
        ] {
            assert_eq!(number_of(name), Some(number), "{name}");
        }
        assert_eq!(number_of("openat2"), None, "the filter does not name it");
        assert!(!is_named(libc::SYS_clone3) && is_named(libc::SYS_clone));
    }
}
