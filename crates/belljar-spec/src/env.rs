//! Every environment variable that Belljar reads or sets. Nothing else in the environment changes
//! what it does.

/// Where runs, keys and the ledger live. Default: `$XDG_STATE_HOME/belljar`.
pub const HOME: &str = "BELLJAR_HOME";
/// The belljar executable that a program embedding the library starts. For a belljar without the jail: the Linux
/// executable of the same build that is PID 1 of its containers.
pub const EXE: &str = "BELLJAR_EXE";
/// What is logged: a level, or `target=level,...`. See docs/diagnosis.md.
pub const LOG: &str = "BELLJAR_LOG";
/// Backends that the test suite requires, comma-separated: a missing one is an error.
pub const MUST_WORK: &str = "BELLJAR_MUST_WORK";
/// Settings given by the environment start with this; `BELLJAR_LIMITS_MEMORY` is `limits.memory`.
pub const SETTING_PREFIX: &str = "BELLJAR_";
/// Names under [`SETTING_PREFIX`] that are not settings.
pub const NOT_SETTINGS: &[&str] = &[HOME, EXE, LOG, MUST_WORK, BLESS, RUN_ID_INSIDE];
/// Makes tests rewrite the files they compare with.
pub const BLESS: &str = "BELLJAR_BLESS";
/// How tests and benchmarks configure their processes; never a setting.
pub const TEST_PREFIX: &str = "BELLJAR_TEST_";

/// The container engines that `cargo xtask test` started for the tests, as addresses (`unix:///…`). One
/// that is not there has no variable.
pub const TEST_DOCKER: &str = "BELLJAR_TEST_DOCKER";
pub const TEST_PODMAN: &str = "BELLJAR_TEST_PODMAN";
pub const TEST_PODMAN_ROOTLESS: &str = "BELLJAR_TEST_PODMAN_ROOTLESS";
/// The user of the rootless engine: no other user's belljar can use it.
pub const TEST_PODMAN_ROOTLESS_USER: &str = "BELLJAR_TEST_PODMAN_ROOTLESS_USER";
/// The name of the gVisor runtime that the Docker engine of the tests has.
pub const TEST_RUNSC: &str = "BELLJAR_TEST_RUNSC";
/// What the image of the tests is called on each kind of engine.
pub const TEST_IMAGE_DOCKER: &str = "BELLJAR_TEST_IMAGE_DOCKER";
pub const TEST_IMAGE_PODMAN: &str = "BELLJAR_TEST_IMAGE_PODMAN";
/// The same image as a file, for an engine that a test starts itself.
pub const TEST_IMAGE_ARCHIVE: &str = "BELLJAR_TEST_IMAGE_ARCHIVE";
/// The name of an image of Debian's minimal system on the tests' Docker.
pub const TEST_IMAGE_DEBIAN: &str = "BELLJAR_TEST_IMAGE_DEBIAN";
/// An AppArmor parser that knows the rules of version 4.
pub const TEST_APPARMOR_PARSER: &str = "BELLJAR_TEST_APPARMOR_PARSER";

/// The engine in whose containers the test suite runs the jail's tests.
pub const TEST_ON: &str = "BELLJAR_TEST_ON";
/// A belljar executable that was built without the jail, for the tests of it.
pub const TEST_NO_JAIL: &str = "BELLJAR_TEST_NO_JAIL";
/// The launcher of `belljar-remote`, whose jail is behind TCP, for the tests of it.
pub const TEST_REMOTE: &str = "BELLJAR_TEST_REMOTE";
/// How long PID 1 of a container lives without a message, in the test suite. Only a build with debug assertions
/// reads it.
pub const TEST_LEASE_MS: &str = "BELLJAR_TEST_LEASE_MS";

/// Set inside every sandbox, so that a program can detect where it runs. Holds the run's id.
pub const RUN_ID_INSIDE: &str = "BELLJAR_RUN";
