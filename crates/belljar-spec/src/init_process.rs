//! How `belljar __init` is started, and how an executable that contains it is recognised.

/// The argument that makes a process PID 1.
pub const ARGUMENT: &str = "__init";
/// The second one, where an engine gives PID 1 nothing but its standard streams: the channel is 0 and 1.
pub const OVER_STDIO: &str = "stdio";
/// The same, where the link to the launcher can break: descriptor 3 is a socket from which PID 1 receives a descriptor
/// for each link, the first one and those that replace it.
pub const OVER_LINKS: &str = "links";
/// The second one that prints [`BUILD_MARK`] instead.
pub const SHOW_BUILD: &str = "build";
/// The argument of a command that does nothing and succeeds, in a root without any program.
pub const NOTHING: &str = "__nothing";

/// The Landlock version that PID 1 requests; newer versions add nothing that a sandbox needs.
pub const LANDLOCK_WANTED: u32 = 6;

/// Every executable that can be PID 1 contains this text: a launcher on another system can read it, but not run the
/// executable. Only PID 1's code may use it, or an executable without that code would contain it too.
pub const BUILD_MARK: &str =
    concat!("belljar-init-build=", env!("CARGO_PKG_VERSION"), "-", env!("BELLJAR_CONTRACT"), ";\n");

/// The text of [`BUILD_MARK`] for a build, for those who look for it.
pub fn build_mark(build: &str) -> String {
    // With a hole in the middle, so that the program that searches does not contain what it searches for.
    "belljar-init-build={};\n".replace("{}", build)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_this_build_is_what_a_search_looks_for() {
        assert_eq!(build_mark(crate::BUILD), BUILD_MARK);
        assert_ne!(build_mark("0.0.0-other"), BUILD_MARK);
    }
}
