//! A credential that the proxy adds to requests, described by a program.

use std::path::PathBuf;

use belljar_spec::manifest::{self, HostPath};

/// A credential that never enters the sandbox: the proxy adds it to requests to one host. The run has a variable with
/// a placeholder.
///
/// The value comes from the host's variable of the same name, unless another source is named. The last source that is
/// named counts.
///
/// ```
/// use belljar::Secret;
///
/// let key = Secret::header("ANTHROPIC_API_KEY", "api.anthropic.com", "x-api-key");
/// let token = Secret::bearer("API_TOKEN", "api.example").port(8443).from_file("/run/token");
/// ```
#[derive(Clone, Debug)]
pub struct Secret(manifest::Secret);

impl Secret {
    /// Sent as this header.
    pub fn header(
        variable: impl Into<String>,
        host: impl Into<String>,
        header: impl Into<String>,
    ) -> Self {
        let secret = Self::for_host(variable.into(), host.into());
        Self(manifest::Secret { header: Some(header.into()), ..secret })
    }

    /// Sent as a bearer token.
    pub fn bearer(variable: impl Into<String>, host: impl Into<String>) -> Self {
        let secret = Self::for_host(variable.into(), host.into());
        Self(manifest::Secret { bearer: Some(true), ..secret })
    }

    /// Sent as the password of this user in basic authentication.
    pub fn basic(
        variable: impl Into<String>,
        host: impl Into<String>,
        user: impl Into<String>,
    ) -> Self {
        let secret = Self::for_host(variable.into(), host.into());
        Self(manifest::Secret { basic: Some(user.into()), ..secret })
    }

    /// Sent as this query parameter.
    pub fn query(
        variable: impl Into<String>,
        host: impl Into<String>,
        parameter: impl Into<String>,
    ) -> Self {
        let secret = Self::for_host(variable.into(), host.into());
        Self(manifest::Secret { query: Some(parameter.into()), ..secret })
    }

    /// The host's port. The default is 443.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        Self(manifest::Secret { port: Some(port), ..self.0 })
    }

    /// Takes the value from this variable of the host.
    #[must_use]
    pub fn from_env(self, variable: impl Into<String>) -> Self {
        Self(manifest::Secret { from_env: Some(variable.into()), ..self.without_source() })
    }

    /// Takes the value from this file, which must be readable by its owner alone.
    #[must_use]
    pub fn from_file(self, path: impl Into<PathBuf>) -> Self {
        let file = Some(HostPath(path.into().into()));
        Self(manifest::Secret { file, ..self.without_source() })
    }

    /// Takes the value from what this program prints. It runs on the host.
    #[must_use]
    pub fn from_command<A: Into<String>>(self, argv: impl IntoIterator<Item = A>) -> Self {
        let command = Some(argv.into_iter().map(Into::into).collect());
        Self(manifest::Secret { command, ..self.without_source() })
    }

    /// Takes the value from this entry of the host's keyring.
    #[must_use]
    pub fn from_keyring(self, entry: impl Into<String>) -> Self {
        Self(manifest::Secret { keyring: Some(entry.into()), ..self.without_source() })
    }

    fn for_host(env: String, host: String) -> manifest::Secret {
        manifest::Secret { env, host, ..manifest::Secret::default() }
    }

    fn without_source(self) -> manifest::Secret {
        manifest::Secret { from_env: None, file: None, command: None, keyring: None, ..self.0 }
    }

    /// As a value of the settings, if it can be one.
    pub(super) fn setting(self) -> Result<manifest::Secret, String> {
        let Self(secret) = self;
        if secret.env.is_empty() || secret.host.is_empty() {
            return Err("a secret needs a variable and a host".into());
        }
        manifest::check_secret(&secret)?;
        Ok(secret)
    }
}
