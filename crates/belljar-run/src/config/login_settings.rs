//! Reads where logins are refreshed, from files of the user and of the administrator only.

use belljar_record::home::Home;
use belljar_spec::Settings;
use belljar_spec::login_settings::LoginSettings;
use belljar_spec::manifest::Auth;

use super::files::DecisionReader;
use super::trust::read_trusted;
use super::{ConfigError, ConfigFiles, Invocation, host};

const LOGIN_FILE: &str = "login.toml";

/// The user's file, else the administrator's.
pub(super) fn read(
    invocation: &Invocation,
    settings: &Settings,
    reader: &DecisionReader,
    home: &Home,
) -> Result<LoginSettings, ConfigError> {
    let is_wanted = settings.values.agent.auth == Some(Auth::Login)
        && invocation.command.is_agent()
        && invocation.config_files == ConfigFiles::Read;
    let places = [host::user_config(&invocation.env), Some(invocation.system.clone())];
    for directory in places.into_iter().flatten().filter(|_| is_wanted) {
        let path = directory.join(LOGIN_FILE);
        if let Some(content) = read_trusted(&path, None, reader, home)? {
            return Ok(LoginSettings::parse(&content, &path.as_path().into())?);
        }
    }
    Ok(LoginSettings::default())
}
