//! The variables that whoever enters the tree keeps: how registries are reached, what must work. Everything
//! else belongs to the machine outside.

use std::ffi::OsString;

/// Whole names.
const NAMES: [&str; 17] = [
    "BELLJAR_MUST_WORK",
    "CI",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_INDEX_URL",
    "REQUESTS_CA_BUNDLE",
    "RUSTUP_TOOLCHAIN",
    "RUST_BACKTRACE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "npm_config_registry",
];

const PREFIXES: [&str; 6] = [
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
    "CARGO_SOURCE_",
    "NEXTEST_",
];

/// The programs of the tree, and those that are mounted into it.
const PATH: &str = "/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn of_the_tree(
    outside: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let passed = outside.filter(|(name, _)| name.to_str().is_some_and(is_passed_on));
    let own = [
        ("PATH", PATH),
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("CARGO_HOME", "/root/.cargo"),
        ("RUSTUP_HOME", "/root/.rustup"),
    ];
    passed.chain(own.map(|(name, value)| (name.into(), value.into()))).collect()
}

fn is_passed_on(name: &str) -> bool {
    let lower = name.to_lowercase();
    NAMES.iter().any(|passed| *passed == name || (passed.ends_with("_proxy") && *passed == lower))
        || name == "NPM_CONFIG_REGISTRY"
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_reached_as_outside_and_nothing_else_comes_along() {
        let outside = ["HTTPS_PROXY", "CARGO_NET_OFFLINE", "PYTHONPATH", "HOME", "CARGO_PKG_NAME"];
        let outside = outside.into_iter().map(|name| (name.into(), "outside".into()));
        let inside = of_the_tree(outside);
        let value = |wanted: &str| {
            inside.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.to_str().unwrap())
        };
        assert_eq!(value("HTTPS_PROXY"), Some("outside"));
        assert_eq!(value("CARGO_NET_OFFLINE"), Some("outside"));
        assert_eq!(value("HOME"), Some("/root"));
        assert_eq!(value("PYTHONPATH"), None);
        assert_eq!(value("CARGO_PKG_NAME"), None);
    }
}
