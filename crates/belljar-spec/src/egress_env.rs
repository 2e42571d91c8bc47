//! Environment variables that point programs inside to the proxy and to the run's certificate authority.

use crate::egress::{TRUST_BUNDLE, TRUST_CA, TRUST_DIRECTORY, TRUST_JAVA};

/// Not sent through the proxy: the sandbox's loopback.
const NOT_PROXIED: &str = "localhost,127.0.0.1,::1";
/// The password of Java's trust store, which every Java program knows.
pub const JAVA_STORE_PASSWORD: &str = "changeit";

/// For every run that has network access.
pub fn proxy_variables(port: u16) -> Vec<(&'static str, String)> {
    // Not `socks5://` for `ALL_PROXY`: several clients stop when they lack a package for it.
    let proxy = format!("http://127.0.0.1:{port}");
    let mut variables: Vec<(&str, String)> =
        ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
            .map(|name| (name, proxy.clone()))
            .into();
    variables.extend(["NO_PROXY", "no_proxy"].map(|name| (name, NOT_PROXIED.to_owned())));
    variables.push(("NODE_USE_ENV_PROXY", "1".to_owned()));
    variables.push(("JAVA_TOOL_OPTIONS", java_proxy(port)));
    variables
}

/// On top of [`proxy_variables`], for a run in which the proxy opens some TLS; where both set a variable, this one
/// holds.
pub fn trust_variables(port: u16) -> Vec<(&'static str, String)> {
    let path = |file: &str| format!("{TRUST_DIRECTORY}/{file}");
    // These replace what a program trusts, so they name the whole bundle.
    let mut variables: Vec<(&str, String)> = [
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "PIP_CERT",
        "CARGO_HTTP_CAINFO",
        "AWS_CA_BUNDLE",
    ]
    .map(|name| (name, path(TRUST_BUNDLE)))
    .into();
    // These add to it.
    variables.extend(["NODE_EXTRA_CA_CERTS", "DENO_CERT"].map(|name| (name, path(TRUST_CA))));
    let java = format!(
        "{} -Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStoreType=JKS \
         -Djavax.net.ssl.trustStorePassword={JAVA_STORE_PASSWORD}",
        java_proxy(port),
        path(TRUST_JAVA)
    );
    variables.push(("JAVA_TOOL_OPTIONS", java));
    variables
}

/// Java reads no `HTTP_PROXY`.
fn java_proxy(port: u16) -> String {
    format!(
        "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={port} -Dhttps.proxyHost=127.0.0.1 \
         -Dhttps.proxyPort={port} -Dhttp.nonProxyHosts=localhost|127.*|[::1]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(variables: &[(&str, String)], name: &str) -> String {
        let found: Vec<_> = variables.iter().filter(|(variable, _)| *variable == name).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0].1.clone()
    }

    #[test]
    fn every_spelling_of_a_proxy_variable_is_there() {
        let variables = proxy_variables(61080);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            assert_eq!(value(&variables, name), "http://127.0.0.1:61080");
            assert_eq!(value(&variables, &name.to_lowercase()), "http://127.0.0.1:61080");
        }
        assert_eq!(value(&variables, "no_proxy"), value(&variables, "NO_PROXY"));
        assert!(value(&variables, "JAVA_TOOL_OPTIONS").contains("-Dhttps.proxyPort=61080"));
    }

    #[test]
    fn what_replaces_the_trust_of_a_program_names_the_bundle_and_what_adds_to_it_the_own_one() {
        let variables = trust_variables(61080);
        assert_eq!(value(&variables, "SSL_CERT_FILE"), "/run/belljar/trust/bundle.pem");
        assert_eq!(value(&variables, "NODE_EXTRA_CA_CERTS"), "/run/belljar/trust/ca.pem");
        let java = value(&variables, "JAVA_TOOL_OPTIONS");
        assert!(java.contains("trustStore=/run/belljar/trust/bundle.jks"), "{java}");
        assert!(java.contains("-Dhttp.proxyPort=61080"), "{java}");
    }
}
