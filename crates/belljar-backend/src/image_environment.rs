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
    "NPM_CONFIG_SCRIPT_SHELL",
    "NPM_CONFIG_SHELL",
    "NPM_CONFIG_NODE_OPTIONS",
    "NPM_CONFIG_NODE_GYP",
    "NPM_CONFIG_GIT",
    "NPM_CONFIG_EDITOR",
    "NPM_CONFIG_BROWSER",
    "NPM_CONFIG_VIEWER",
    "NPM_CONFIG_CA",
    "NPM_CONFIG_STRICT_SSL",
    "NPM_CONFIG_NOPROXY",
    "NPM_CONFIG_USERCONFIG",
    "NPM_CONFIG_GLOBALCONFIG",
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
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
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
    "PIP_CERT",
    "PIP_TRUSTED_HOST",
    "SOCKS_SERVER",
    "SOCKS5_SERVER",
    // what is the run's own
    "TMPDIR",
    "CONTAINER",
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
    "CARGO_HTTP_",
    "ANSIBLE_",
    "GIT_",
    "SSL_CERT_",
    "DOCKER_",
    "CONTAINER_",
    "KUBERNETES_",
    "BELLJAR_",
    "XDG_",
];

/// Ends of names: proxies, and certificates that are trusted.
const ENDS: &[&str] =
    &["_PROXY", "_CA_BUNDLE", "_CERT_FILE", "_CERT_DIR", "_CAFILE", "_CAINFO", "_CA_CERTS"];

/// What begins so and changes nothing of the kind. Images of Python have them.
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
    is_name && is_harmless && !is_function && !value.contains('\0')
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
            "GOPROXY",
            "NODE_VERSION",
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

    /// They are compared in upper case.
    #[test]
    fn the_lists_are_written_in_upper_case() {
        for name in [NAMES, BEGINNINGS, ENDS, HARMLESS].concat() {
            assert_eq!(name, name.to_ascii_uppercase());
        }
    }
}
