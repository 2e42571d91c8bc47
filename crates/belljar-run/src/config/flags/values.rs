//! Parses the values of flags whose form differs from that of the manifest key.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use belljar_spec::env_file::{self, EnvLine};
use belljar_spec::manifest::{
    Added, HiddenName, HostPath, MountEntry, PublishSetting, TmpfsEntry, VariableName, Waive,
};
use belljar_spec::mount_arg::{BindArg, MountArg, TmpfsArg, WorkspaceArg};
use belljar_spec::paths::checked;
use belljar_spec::text::escape;
use belljar_spec::{Clause, Manifest};

type Parsed = Result<(), String>;

pub(super) fn rootfs(values: &mut Manifest, text: &OsStr) -> Parsed {
    values.sandbox.rootfs = Some(checked(text)?.into());
    Ok(())
}

/// One program; the manifest can have arguments, too.
pub(super) fn entrypoint(values: &mut Manifest, text: &OsStr) -> Parsed {
    let program = (!text.is_empty()).then(|| text.into());
    values.sandbox.entrypoint = Some(program.into_iter().collect());
    Ok(())
}

pub(super) fn require(values: &mut Manifest, text: &str) -> Parsed {
    let clause: Clause =
        text.parse().map_err(|error: belljar_spec::UnknownClause| error.to_string())?;
    Added::add(&mut values.policy.require, clause);
    Ok(())
}

pub(super) fn waive(values: &mut Manifest, text: &str) -> Parsed {
    let (clause, reason) = text.split_once('=').unwrap_or((text, ""));
    Waive::check(clause, reason)?;
    let waive = values.policy.waive.get_or_insert_default();
    waive.0.insert(clause.to_owned(), reason.to_owned());
    Ok(())
}

pub(super) fn prompt_file(values: &mut Manifest, text: &OsStr) -> Parsed {
    values.agent.prompt_file = Some(host_path(text)?);
    Ok(())
}

pub(super) fn workspace(values: &mut Manifest, text: &OsStr) -> Parsed {
    let workspace = WorkspaceArg::parse(text).map_err(|error| error.to_string())?;
    values.sandbox.workspace.set(workspace);
    Ok(())
}

pub(super) fn volume(values: &mut Manifest, text: &OsStr) -> Parsed {
    let bind = BindArg::parse(text).map_err(|error| error.to_string())?;
    add_mount(values, MountArg::Bind(bind));
    Ok(())
}

pub(super) fn mount(values: &mut Manifest, text: &OsStr) -> Parsed {
    let mount = MountArg::parse(text).map_err(|error| error.to_string())?;
    add_mount(values, mount);
    Ok(())
}

pub(super) fn tmpfs(values: &mut Manifest, text: &OsStr) -> Parsed {
    let tmpfs = TmpfsArg::parse(text).map_err(|error| error.to_string())?;
    add_mount(values, MountArg::Tmpfs(tmpfs));
    Ok(())
}

pub(super) fn tool(values: &mut Manifest, text: &OsStr) -> Parsed {
    Added::add(&mut values.sandbox.tools, host_path(text)?);
    Ok(())
}

pub(super) fn allow_source(values: &mut Manifest, text: &OsStr) -> Parsed {
    Added::add(&mut values.sandbox.allow_source, host_path(text)?);
    Ok(())
}

pub(super) fn hide(values: &mut Manifest, text: &OsStr) -> Parsed {
    Added::add(&mut values.sandbox.hide, HiddenName::parse(&checked(text)?)?);
    Ok(())
}

pub(super) fn allow_control(values: &mut Manifest, text: &OsStr) -> Parsed {
    Added::add(&mut values.sandbox.allow_control, HiddenName::parse(&checked(text)?)?);
    Ok(())
}

pub(super) fn workdir(values: &mut Manifest, text: &OsStr) -> Parsed {
    values.sandbox.workdir = Some(checked(text)?);
    Ok(())
}

pub(super) fn network(values: &mut Manifest, text: &str) -> Parsed {
    if text != "none" {
        return Err(format!(
            "takes only \"none\", not \"{}\"; use --allow-host HOST to open one host",
            escape(text.as_bytes())
        ));
    }
    values.network.allow = Some(Vec::new());
    values.network.allow_private = Some(Vec::new());
    Ok(())
}

pub(super) fn allow_host(values: &mut Manifest, text: &str) -> Parsed {
    values.network.allow.get_or_insert_default().push(text.to_owned());
    Ok(())
}

pub(super) fn secret(values: &mut Manifest, text: &str) -> Parsed {
    Added::add(&mut values.secret, super::secret::parse(text)?);
    Ok(())
}

pub(super) fn publish(values: &mut Manifest, text: &str) -> Parsed {
    let publish = PublishSetting::parse(text)?;
    values.network.publish.get_or_insert_default().push(publish);
    Ok(())
}

pub(super) fn env(values: &mut Manifest, text: &OsStr) -> Parsed {
    match env_file::parse_assignment(text.as_bytes())? {
        EnvLine::Set { name, value } => {
            values.sandbox.env.get_or_insert_default().0.insert(name, value);
        }
        EnvLine::Pass { name } => Added::add(&mut values.sandbox.pass_env, VariableName(name)),
    }
    Ok(())
}

pub(super) fn env_file(values: &mut Manifest, text: &OsStr) -> Parsed {
    Added::add(&mut values.sandbox.env_file, host_path(text)?);
    Ok(())
}

pub(super) fn pass_env(values: &mut Manifest, text: &OsStr) -> Parsed {
    let name = env_file::check_name(text.as_bytes())?;
    Added::add(&mut values.sandbox.pass_env, VariableName(name));
    Ok(())
}

pub(super) fn label(values: &mut Manifest, text: &str) -> Parsed {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    if key.is_empty() {
        return Err("the key is empty; use KEY=VALUE".into());
    }
    let labels = values.sandbox.labels.get_or_insert_default();
    labels.insert(key.to_owned(), value.to_owned());
    Ok(())
}

fn add_mount(values: &mut Manifest, mount: MountArg) {
    match mount {
        MountArg::Bind(BindArg { source, target, mode }) => {
            let entry = MountEntry { source: HostPath(source), target, mode: Some(mode) };
            Added::add(&mut values.sandbox.mounts, entry);
        }
        MountArg::Tmpfs(tmpfs) => Added::add(&mut values.sandbox.tmpfs, TmpfsEntry(tmpfs)),
    }
}

fn host_path(path: &OsStr) -> Result<HostPath, String> {
    checked(path).map(HostPath)
}
