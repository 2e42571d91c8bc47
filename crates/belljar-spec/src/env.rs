//! Every environment variable that Belljar reads or sets. Nothing else in the environment changes
//! what it does.

/// Where runs, keys and the ledger live. Default: `$XDG_STATE_HOME/belljar`.
pub const HOME: &str = "BELLJAR_HOME";
/// The belljar executable that a program embedding the library starts.
pub const EXE: &str = "BELLJAR_EXE";
/// Backends whose absence is an error in the test suite, comma-separated.
pub const MUST_WORK: &str = "BELLJAR_MUST_WORK";
/// Settings given by the environment start with this; `BELLJAR_LIMITS_MEMORY` is `limits.memory`.
pub const SETTING_PREFIX: &str = "BELLJAR_";
/// Names under [`SETTING_PREFIX`] that are no settings.
pub const NOT_SETTINGS: &[&str] = &[HOME, EXE, MUST_WORK, BLESS, RUN_ID_INSIDE];
/// Makes tests rewrite the files they compare with.
pub const BLESS: &str = "BELLJAR_BLESS";
/// What tests and benchmarks tell their own processes; never a setting.
pub const TEST_PREFIX: &str = "BELLJAR_TEST_";

/// Set inside every sandbox, so that a program can tell where it is. Holds the run's id.
pub const RUN_ID_INSIDE: &str = "BELLJAR_RUN";
