//! Parses `--secret env=NAME,host=HOST,header=NAME`, the command-line form of `[[secret]]`.

use belljar_spec::manifest::{HostPath, Secret};
use belljar_spec::text::escape;

const USAGE: &str = "use env=NAME,host=HOST and header=NAME, query=NAME, basic=USER or bearer, such as \
                    env=ANTHROPIC_API_KEY,host=api.anthropic.com,header=x-api-key";

pub(super) fn parse(text: &str) -> Result<Secret, String> {
    let mut secret = Secret::default();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let some = || Some(value.to_owned());
        match key {
            "bearer" if value.is_empty() || value == "true" => secret.bearer = Some(true),
            _ if value.is_empty() => {
                return Err(format!("\"{}\" has no value; {USAGE}", escape(part.as_bytes())));
            }
            "env" => secret.env = value.to_owned(),
            "host" => match value.rsplit_once(':') {
                Some((host, port)) if !port.contains(']') => {
                    secret.host = host.to_owned();
                    secret.port = Some(self::port(port)?);
                }
                _ => secret.host = value.to_owned(),
            },
            "port" => secret.port = Some(port(value)?),
            "header" => secret.header = some(),
            "query" => secret.query = some(),
            "basic" => secret.basic = some(),
            "from-env" | "from_env" => secret.from_env = some(),
            "file" => secret.file = Some(HostPath(value.into())),
            "keyring" => secret.keyring = some(),
            "command" => {
                secret.command = Some(value.split_whitespace().map(str::to_owned).collect());
            }
            _ => {
                return Err(format!(
                    "\"{}\" is not a key of a secret; {USAGE}",
                    escape(key.as_bytes())
                ));
            }
        }
    }
    if secret.env.is_empty() || secret.host.is_empty() {
        return Err(format!("env and host are required; {USAGE}"));
    }
    belljar_spec::manifest::check_secret(&secret)?;
    Ok(secret)
}

fn port(text: &str) -> Result<u16, String> {
    belljar_spec::host::parse_port(text.as_bytes())
        .ok_or_else(|| format!("\"{}\" is not a port number", escape(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_can_be_written_on_the_command_line() {
        let secret = parse("env=K,host=h:8443,basic=git,command=op read op://v/i").unwrap();
        assert_eq!(
            (secret.env.as_str(), secret.host.as_str(), secret.port),
            ("K", "h", Some(8443))
        );
        assert_eq!(secret.command.unwrap(), ["op", "read", "op://v/i"]);
        assert_eq!(parse("env=K,host=h,bearer").unwrap().bearer, Some(true));
        for bad in [
            "",
            "K",
            "env=K",
            "host=h,bearer",
            "env=K,host=h",
            "env=K,host=h,header=",
            "env=K,host=h,x=y",
            "env=K,host=h,header=a,bearer",
            "env=K,host=h:0,bearer",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
