//! Which of an image's variables its programs are given.

use std::collections::BTreeMap;

use belljar_spec::OsText;

/// Names, or beginnings of names, that make programs load other code, trust others or go elsewhere.
const DROPPED: &[&str] = &[
    "LD_",
    "DYLD_",
    "GLIBC_TUNABLES",
    "MALLOC_",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    "RES_OPTIONS",
    "HOSTALIASES",
    "BASH_ENV",
    "ENV",
    "BASH_FUNC_",
    "SHELLOPTS",
    "BASHOPTS",
    "PROMPT_COMMAND",
    "PS4",
    "IFS",
    "CDPATH",
    "GLOBIGNORE",
    "ZDOTDIR",
    "PERL5",
    "PERLLIB",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PYTHONINSPECT",
    "PYTHONPATH",
    "RUBYOPT",
    "RUBYLIB",
    "NODE_OPTIONS",
    "NODE_EXTRA_CA_CERTS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "GIT_",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "LESSOPEN",
    "LESSCLOSE",
    "SSL_CERT_",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "FTP_PROXY",
    "DOCKER_",
    "CONTAINER_",
    "KUBERNETES_",
    "BELLJAR_",
    "TMPDIR",
    "XDG_",
    "container",
];

/// The run's own come first; of the image's, whatever is not dangerous. Its `PATH` goes behind the run's.
pub(super) fn merge(
    own: &BTreeMap<String, OsText>,
    image: &[(String, String)],
) -> BTreeMap<String, OsText> {
    let mut merged = own.clone();
    for (name, value) in image {
        if name == "PATH" {
            let path = merged.remove("PATH").unwrap_or_default();
            merged.insert("PATH".to_owned(), longer_path(&path, value));
        } else if is_harmless(name, value) {
            merged.entry(name.clone()).or_insert_with(|| OsText::from(value.as_str()));
        }
    }
    merged
}

fn is_harmless(name: &str, value: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = !name.is_empty() && name.chars().all(plain);
    let upper = name.to_ascii_uppercase();
    let dropped = DROPPED.iter().any(|known| {
        upper.starts_with(&known.to_ascii_uppercase())
            && (known.ends_with('_') || upper.len() == known.len())
    });
    is_name && !dropped && !value.contains('\0')
}

fn longer_path(own: &OsText, image: &str) -> OsText {
    let mut bytes = own.as_bytes().to_vec();
    let known: Vec<Vec<u8>> = bytes.split(|byte| *byte == b':').map(<[u8]>::to_vec).collect();
    for entry in image.split(':').filter(|entry| entry.starts_with('/')) {
        if !known.iter().any(|known| known == entry.as_bytes()) {
            bytes.push(b':');
            bytes.extend_from_slice(entry.as_bytes());
        }
    }
    OsText::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(image: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own = [("PATH", "/a:/b"), ("HOME", "/home/agent")];
        let own = own.map(|(name, value)| (name.to_owned(), OsText::from(value))).into();
        let image: Vec<(String, String)> =
            image.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        merge(&own, &image).into_iter().map(|(name, value)| (name, value.to_string())).collect()
    }

    #[test]
    fn an_image_adds_and_never_replaces() {
        let env =
            merged(&[("HOME", "/root"), ("CARGO_HOME", "/usr/local/cargo"), ("PATH", "/b:/c:.")]);
        assert_eq!(env["HOME"], "/home/agent");
        assert_eq!(env["CARGO_HOME"], "/usr/local/cargo");
        assert_eq!(env["PATH"], "/a:/b:/c");
    }

    #[test]
    fn what_makes_programs_load_other_code_is_left_out() {
        for name in [
            "LD_PRELOAD",
            "ld_preload",
            "BASH_ENV",
            "NODE_OPTIONS",
            "https_proxy",
            "GIT_SSH",
            "A=B",
            "",
        ] {
            assert_eq!(merged(&[(name, "x")]).len(), 2, "{name}");
        }
        assert_eq!(merged(&[("ENVIRONMENT", "x")]).len(), 3);
    }
}
