//! Selects the variables of an image that its programs are given.

use std::collections::BTreeMap;

use belljar_spec::OsText;

// Of each kind below, what makes a program execute or load code that it was not asked for, changes where it loads it
// from, or changes whom it trusts or where it goes. What only names the image's own toolchain (`CARGO_HOME`, `JAVA_HOME`,
// `GEM_HOME`, `GOPATH`, `CC`) stays: that is what an image is for. Upper case, since some are read in either.

/// Whole names.
const NAMES: &[&str] = &[
    // the dynamic loader and the C library
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "GETCONF_DIR",
    "LOCPATH",
    "NLSPATH",
    "TZDIR",
    "RES_OPTIONS",
    "LOCALDOMAIN",
    "HOSTALIASES",
    "NIS_PATH",
    "LIBPATH",
    "SHLIB_PATH",
    // libraries that load modules
    "OPENSSL_CONF",
    "OPENSSL_CONF_INCLUDE",
    "OPENSSL_ENGINES",
    "OPENSSL_MODULES",
    "SASL_PATH",
    "KRB5_CONFIG",
    "QT_PLUGIN_PATH",
    "QT_QPA_PLATFORM_PLUGIN_PATH",
    "QML_IMPORT_PATH",
    "QML2_IMPORT_PATH",
    "GTK_MODULES",
    "GTK3_MODULES",
    "GTK_PATH",
    "GTK_EXE_PREFIX",
    "GIO_EXTRA_MODULES",
    "GIO_MODULE_DIR",
    "GDK_PIXBUF_MODULE_FILE",
    "GDK_PIXBUF_MODULEDIR",
    "LIBGL_DRIVERS_PATH",
    "VK_ICD_FILENAMES",
    "VK_DRIVER_FILES",
    "VK_LAYER_PATH",
    "OCL_ICD_VENDORS",
    "LIBMYSQL_PLUGINS",
    "LIBMYSQL_PLUGIN_DIR",
    "GDAL_DRIVER_PATH",
    // shells
    "BASH_ENV",
    "ENV",
    "SHELLOPTS",
    "BASHOPTS",
    "BASH_XTRACEFD",
    "BASH_LOADABLES_PATH",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PS3",
    "PS4",
    "IFS",
    "CDPATH",
    "GLOBIGNORE",
    "EXECIGNORE",
    "FPATH",
    "FCEDIT",
    "ZDOTDIR",
    "INPUTRC",
    "SHELL",
    "PSMODULEPATH",
    "TERMCAP",
    "TERMINFO",
    "TERMINFO_DIRS",
    // Ruby
    "RUBYOPT",
    "RUBYLIB",
    "RUBYPATH",
    "RUBYSHELL",
    "BUNDLE_GEMFILE",
    // JavaScript
    "NODE_OPTIONS",
    "NODE_PATH",
    "NODE_REPL_EXTERNAL_MODULE",
    "NODE_COMPILE_CACHE",
    "NODE_EXTRA_CA_CERTS",
    "NODE_TLS_REJECT_UNAUTHORIZED",
    "ELECTRON_RUN_AS_NODE",
    "BUN_OPTIONS",
    "BUN_INSPECT",
    "DENO_CERT",
    "DENO_TLS_CA_STORE",
    // Java
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "JDK_JAVAC_OPTIONS",
    "IBM_JAVA_OPTIONS",
    "OPENJ9_JAVA_OPTIONS",
    "JAVA_OPTS",
    "MAVEN_OPTS",
    "MAVEN_ARGS",
    "GRADLE_OPTS",
    "SBT_OPTS",
    "ANT_OPTS",
    "ANT_ARGS",
    "CLASSPATH",
    // .NET
    "DOTNET_STARTUP_HOOKS",
    "DOTNET_ADDITIONAL_DEPS",
    "DOTNET_SHARED_STORE",
    "DOTNET_DIAGNOSTICPORTS",
    "DOTNET_GCNAME",
    "DOTNET_GCPATH",
    "COMPLUS_GCNAME",
    "COMPLUS_GCPATH",
    // other languages
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "JULIA_LOAD_PATH",
    "JULIA_PROJECT",
    "ELIXIR_ERL_OPTIONS",
    "TCLLIBPATH",
    "TCL_LIBRARY",
    "AWKPATH",
    "AWKLIBPATH",
    "GHCRTS",
    "GHC_PACKAGE_PATH",
    "GHC_ENVIRONMENT",
    "OCAMLRUNPARAM",
    "CAML_LD_LIBRARY_PATH",
    "EMACSLOADPATH",
    "IPYTHONDIR",
    "JUPYTER_PATH",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_CONFIG_PATH",
    "PYTEST_PLUGINS",
    "PYTEST_ADDOPTS",
    "COVERAGE_PROCESS_START",
    "__PYVENV_LAUNCHER__",
    // compilers and build tools that start others
    "MAKEFLAGS",
    "GNUMAKEFLAGS",
    "MFLAGS",
    "MAKEFILES",
    "RUSTFLAGS",
    "RUSTDOC",
    "RUSTDOCFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "GOFLAGS",
    "GOENV",
    "GOAUTH",
    "GOVCS",
    "GOINSECURE",
    "GOSUMDB",
    "GONOSUMDB",
    "GONOSUMCHECK",
    "GOTOOLCHAIN",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "CMAKE_TOOLCHAIN_FILE",
    // programs that start others
    "EDITOR",
    "VISUAL",
    "PAGER",
    "MANPAGER",
    "BAT_PAGER",
    "SYSTEMD_PAGER",
    "PSQL_PAGER",
    "PSQL_EDITOR",
    "PSQLRC",
    "BROWSER",
    "LESS",
    "LESSOPEN",
    "LESSCLOSE",
    "LESSEDIT",
    "VIMINIT",
    "GVIMINIT",
    "EXINIT",
    "MYVIMRC",
    "VIMRUNTIME",
    "TAR_OPTIONS",
    "GREP_OPTIONS",
    "RSYNC_RSH",
    "CVS_RSH",
    "SVN_SSH",
    "SSH_ASKPASS",
    "SUDO_ASKPASS",
    "HGRCPATH",
    "HGEDITOR",
    "HGMERGE",
    "RIPGREP_CONFIG_PATH",
    "FZF_DEFAULT_COMMAND",
    "FZF_DEFAULT_OPTS",
    "FZF_DEFAULT_OPTS_FILE",
    "CURL_HOME",
    "WGETRC",
    "SYSTEM_WGETRC",
    "NETRC",
    "GNUPGHOME",
    "MYSQL_HOME",
    "KUBECONFIG",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "TF_CLI_CONFIG_FILE",
    "HELM_PLUGINS",
    "CLOUDSDK_PYTHON",
    // whom programs trust, and where they go
    "SSLKEYLOGFILE",
    "SOCKS_SERVER",
    "SOCKS5_SERVER",
    "DEBUGINFOD_URLS",
    "UV_DEFAULT_INDEX",
    "UV_FIND_LINKS",
    "GOPROXY",
    "RUSTUP_DIST_SERVER",
    "RUSTUP_UPDATE_ROOT",
    "OLLAMA_HOST",
    // what is the run's own
    "TMPDIR",
    "CONTAINER",
    "PWD",
    "OLDPWD",
    "_",
    "TERM",
];

/// Beginnings of names.
const BEGINNINGS: &[&str] = &[
    "LD_",
    "DYLD_",
    "MALLOC_",
    "BASH_FUNC_",
    "PERL",
    "PYTHON",
    "RUBYGEMS_",
    "LUA_INIT",
    "LUA_PATH",
    "LUA_CPATH",
    "ERL_",
    "GUILE_",
    "R_PROFILE",
    "R_ENVIRON",
    "R_LIBS",
    "R_DEFAULT_PACKAGES",
    "COR_",
    "CORECLR_",
    "GST_PLUGIN_",
    "GST_REGISTRY",
    "LESSKEY",
    "CARGO_BUILD_",
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
    "CARGO_SOURCE_",
    "RUSTC",
    "NPM_CONFIG_",
    "YARN_",
    "PIP_",
    "UV_INDEX",
    "BUNDLE_MIRROR",
    "AWS_ENDPOINT_URL",
    "ANSIBLE_",
    "GIT_",
    "SSL_CERT_",
    "DOCKER_",
    "CONTAINER_",
    "KUBERNETES_",
    "BELLJAR_",
    "XDG_",
    // agents: which service they talk to, with which key, under which settings
    "ANTHROPIC_",
    "CLAUDE_",
    "OPENAI_",
    "CODEX_",
    "GEMINI_",
    "GOOGLE_GENAI_",
];

/// Ends of names: proxies, certificates that are trusted, and addresses of services.
const ENDS: &[&str] = &[
    "_PROXY",
    "_CA_BUNDLE",
    "_CERT_FILE",
    "_CERT_DIR",
    "_CAFILE",
    "_CAINFO",
    "_CA_CERTS",
    "_BASE_URL",
    "_API_BASE",
    "_INDEX_URL",
];

/// What begins so and changes nothing of the kind. Images of Python and Node have them.
const HARMLESS: &[&str] = &[
    "PYTHONUNBUFFERED",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONFAULTHANDLER",
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "PYTHONOPTIMIZE",
    "PYTHONNOUSERSITE",
    "PYTHONSAFEPATH",
    "PYTHON_VERSION",
    "PYTHON_PIP_VERSION",
    "PYTHON_SETUPTOOLS_VERSION",
    "PYTHON_GET_PIP_URL",
    "PYTHON_GET_PIP_SHA256",
    "PYTHON_SHA256",
    "PERL_VERSION",
    "PIP_NO_CACHE_DIR",
    "PIP_DISABLE_PIP_VERSION_CHECK",
    "NPM_CONFIG_LOGLEVEL",
    "YARN_VERSION",
];

/// The run's own come first; of the image's, whatever is not dangerous. Its `PATH` goes behind the run's.
pub(crate) fn merge(
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
    let name = name.to_ascii_uppercase();
    let is_dropped = NAMES.contains(&name.as_str())
        || BEGINNINGS.iter().any(|start| name.starts_with(start))
        || ENDS.iter().any(|end| name.ends_with(end));
    // Old shells take such a value for a function, whatever the name is.
    let is_function = value.starts_with("() {");
    let is_harmless = !is_dropped || HARMLESS.contains(&name.as_str());
    is_name && is_harmless && !is_function && !value.contains(char::is_control)
}

fn longer_path(own: &OsText, image: &str) -> OsText {
    let mut bytes = own.as_bytes().to_vec();
    let known: Vec<Vec<u8>> = bytes.split(|byte| *byte == b':').map(<[u8]>::to_vec).collect();
    let is_plain = |entry: &&str| entry.starts_with('/') && !entry.contains(char::is_control);
    for entry in image.split(':').filter(is_plain) {
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
            "LD_AUDIT",
            "GLIBC_TUNABLES",
            "GCONV_PATH",
            "MALLOC_TRACE",
            "BASH_ENV",
            "ENV",
            "PS4",
            "SHELLOPTS",
            "PERL5OPT",
            "PERL5LIB",
            "PERL5DB",
            "PERLLIB",
            "PERLIO_DEBUG",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "PYTHONWARNINGS",
            "PYTHONBREAKPOINT",
            "PYTHON_PRESITE",
            "RUBYOPT",
            "NODE_OPTIONS",
            "NODE_PATH",
            "npm_config_script_shell",
            "JAVA_TOOL_OPTIONS",
            "_JAVA_OPTIONS",
            "CLASSPATH",
            "PHP_INI_SCAN_DIR",
            "LUA_INIT_5_4",
            "LUA_CPATH",
            "ERL_AFLAGS",
            "R_PROFILE_USER",
            "DOTNET_STARTUP_HOOKS",
            "CORECLR_PROFILER_PATH",
            "OPENSSL_CONF",
            "SSLKEYLOGFILE",
            "https_proxy",
            "RSYNC_PROXY",
            "AWS_CA_BUNDLE",
            "GIT_SSH",
            "MAKEFLAGS",
            "GOFLAGS",
            "TAR_OPTIONS",
            "RUSTC_WRAPPER",
            "LESSOPEN",
            "container",
            "A=B",
            "",
        ] {
            assert_eq!(merged(&[(name, "x")]).len(), 2, "{name}");
        }
        assert_eq!(merged(&[("SOMETHING", "() { :; }; x")]).len(), 2);
    }

    #[test]
    fn what_an_image_is_for_comes_along() {
        for name in [
            "ENVIRONMENT",
            "CARGO_HOME",
            "RUSTUP_HOME",
            "JAVA_HOME",
            "GEM_HOME",
            "GOPATH",
            "NODE_VERSION",
            "YARN_VERSION",
            "PIP_NO_CACHE_DIR",
            "RUSTUP_TOOLCHAIN",
            "RUST_VERSION",
            "NODE_ENV",
            "NPM_CONFIG_LOGLEVEL",
            "PYTHONUNBUFFERED",
            "PYTHON_VERSION",
            "RUBY_VERSION",
            "PHP_INI_DIR",
            "DOTNET_VERSION",
            "R_HOME",
            "LANG",
            "LC_ALL",
            "TZ",
            "DEBIAN_FRONTEND",
            "CC",
            "COREUTILS",
        ] {
            assert_eq!(merged(&[(name, "x")]).len(), 3, "{name}");
        }
    }

    #[test]
    fn what_decides_where_programs_go_is_left_out() {
        for name in [
            "ANTHROPIC_BASE_URL",
            "ANTHROPIC_API_KEY",
            "CLAUDE_CONFIG_DIR",
            "OPENAI_BASE_URL",
            "CODEX_HOME",
            "GEMINI_API_KEY",
            "GOOGLE_GENAI_USE_VERTEXAI",
            "SOME_BASE_URL",
            "PIP_INDEX_URL",
            "PIP_CONFIG_FILE",
            "UV_INDEX",
            "UV_INDEX_URL",
            "UV_DEFAULT_INDEX",
            "npm_config_registry",
            "NPM_CONFIG_REGISTRY",
            "RUSTC",
            "RUSTC_WRAPPER",
            "CARGO_BUILD_RUSTC",
            "CARGO_REGISTRIES_CRATES_IO_PROTOCOL",
            "GOPROXY",
            "DEBUGINFOD_URLS",
            "PWD",
            "OLDPWD",
            "_",
            "TERM",
        ] {
            assert_eq!(merged(&[(name, "x")]).len(), 2, "{name}");
        }
    }

    #[test]
    fn values_with_control_characters_are_left_out() {
        for value in ["a\nb", "a\tb", "\u{1b}[2J", "\0", "\u{85}"] {
            assert_eq!(merged(&[("TEXT", value)]).len(), 2, "{value:?}");
            let path = format!("/c{value}:/d");
            assert_eq!(merged(&[("PATH", &path)])["PATH"], "/a:/b:/d", "{value:?}");
        }
        assert_eq!(merged(&[("TEXT", "ä b")])["TEXT"], "ä b");
    }

    /// They are compared in upper case.
    #[test]
    fn the_lists_are_written_in_upper_case() {
        for name in [NAMES, BEGINNINGS, ENDS, HARMLESS].concat() {
            assert_eq!(name, name.to_ascii_uppercase());
        }
    }
}
