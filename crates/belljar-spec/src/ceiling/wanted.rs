//! What is checked against the ceiling: settings, or a run that was resolved earlier.

use std::path::Path;

use super::network::target;
use crate::backends::{BackendChoice, BackendName};
use crate::cpus::Cpus;
use crate::egress::Reach;
use crate::human_duration::HumanDuration;
use crate::layers::{Origin, Settings};
use crate::manifest::{Limit, LimitSettings, PublishSetting, RootfsSetting, WorkspaceMode};
use crate::network_list::Additions;
use crate::runspec::{Limits, Rootfs, RunSpec};
use crate::size::Size;

#[derive(Clone, Copy)]
pub(super) enum Where<'a> {
    Settings(&'a Settings),
    Spec,
    /// A change of a live run's list.
    Change,
}

pub(super) struct Wanted<'a> {
    pub(super) from: Where<'a>,
    pub(super) limits: LimitSettings,
    pub(super) backend: Option<BackendChoice>,
    pub(super) fallback: &'a [BackendName],
    pub(super) allow: Vec<String>,
    pub(super) setup: Vec<String>,
    /// Of routes, as rules.
    pub(super) targets: Vec<String>,
    pub(super) private: Vec<String>,
    pub(super) publish: Vec<PublishSetting>,
    pub(super) reach: Reach,
    /// Each with its key.
    pub(super) sources: Vec<(String, &'a Path)>,
    pub(super) waived: Vec<&'a str>,
}

impl<'a> Wanted<'a> {
    pub(super) fn of_settings(settings: &'a Settings) -> Self {
        let values = &settings.values;
        let list = |texts: &Option<Vec<String>>| texts.clone().unwrap_or_default();
        let routes = values.route.iter().flat_map(|routes| &routes.0);
        let waived = values.policy.waive.iter().flat_map(|waive| waive.0.keys());
        Self {
            from: Where::Settings(settings),
            limits: values.limits.clone(),
            backend: values.sandbox.backend,
            fallback: values.sandbox.fallback.as_deref().unwrap_or_default(),
            allow: list(&values.network.allow),
            setup: list(&values.setup.network),
            targets: routes.map(|route| target(&route.to)).collect(),
            private: list(&values.network.allow_private),
            publish: values.network.publish.clone().unwrap_or_default(),
            reach: Reach::Listed,
            sources: sources_of_settings(settings),
            waived: waived.map(String::as_str).collect(),
        }
    }

    pub(super) fn of_spec(spec: &'a RunSpec) -> Self {
        let egress = &spec.egress;
        let targets = egress.routes.iter().map(|route| &route.to);
        Self {
            from: Where::Spec,
            limits: limits_of_spec(&spec.limits),
            backend: Some(spec.backend),
            fallback: &spec.fallback,
            allow: spec.network_allow.clone(),
            setup: spec.setup_network().to_vec(),
            targets: targets.map(|to| format!("{}:{}", to.host, to.port)).collect(),
            private: egress.allow_private.clone(),
            publish: egress.publish.iter().copied().map(PublishSetting::from).collect(),
            reach: egress.reach,
            sources: sources_of_spec(spec),
            waived: spec.waivers.iter().map(|waiver| waiver.clause.name()).collect(),
        }
    }

    pub(super) fn of_additions(additions: &Additions) -> Self {
        Self {
            from: Where::Change,
            limits: LimitSettings::default(),
            backend: None,
            fallback: &[],
            allow: additions.allow.clone(),
            setup: Vec::new(),
            targets: additions.targets.clone(),
            private: additions.allow_private.clone(),
            publish: Vec::new(),
            reach: Reach::Listed,
            sources: Vec::new(),
            waived: Vec::new(),
        }
    }

    pub(super) fn origin(&self, key: &str) -> String {
        match self.from {
            Where::Settings(settings) => {
                settings.origin(key).unwrap_or(&Origin::BuiltIn).to_string()
            }
            Where::Spec => "the run that it continues".to_owned(),
            Where::Change => "belljar network".to_owned(),
        }
    }
}

fn sources_of_settings(settings: &Settings) -> Vec<(String, &Path)> {
    let sandbox = &settings.values.sandbox;
    let mut sources = Vec::new();
    let none = sandbox.workspace.mode == Some(WorkspaceMode::None);
    if let (Some(path), false) = (&sandbox.workspace.path, none) {
        sources.push(("sandbox.workspace.path".to_owned(), path.as_path()));
    }
    if let Some(RootfsSetting::Directory(path)) = &sandbox.rootfs {
        sources.push(("sandbox.rootfs".to_owned(), path.as_path()));
    }
    let mounts = sandbox.mounts.iter().flat_map(|mounts| &mounts.0).enumerate();
    sources.extend(mounts.map(|(i, m)| (format!("sandbox.mounts[{i}]"), m.source.as_path())));
    let tools = sandbox.tools.iter().flat_map(|tools| &tools.0).enumerate();
    sources.extend(tools.map(|(i, tool)| (format!("sandbox.tools[{i}]"), tool.as_path())));
    sources
}

fn sources_of_spec(spec: &RunSpec) -> Vec<(String, &Path)> {
    let mut sources = Vec::new();
    if let Some(workspace) = &spec.workspace {
        sources.push(("sandbox.workspace.path".to_owned(), workspace.source.as_path()));
    }
    if let Rootfs::Directory { path } = &spec.rootfs {
        sources.push(("sandbox.rootfs".to_owned(), path.as_path()));
    }
    let mounts = spec.mounts.iter().enumerate();
    sources.extend(mounts.map(|(i, m)| (format!("sandbox.mounts[{i}]"), m.source.as_path())));
    let tools = spec.tools.iter().enumerate();
    sources.extend(tools.map(|(i, tool)| (format!("sandbox.tools[{i}]"), tool.as_path())));
    sources
}

fn limits_of_spec(limits: &Limits) -> LimitSettings {
    let span = |time: std::time::Duration| {
        HumanDuration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    };
    // What is not a number of processors is not below any ceiling.
    let cpus = limits.millicpus.and_then(|millis| Cpus::from_millis(millis).ok());
    LimitSettings {
        memory: Some(limit(limits.memory.map(Size))),
        cpus: Some(limit(cpus)),
        pids: Some(limit(limits.pids)),
        time: Some(limit(limits.time.map(span))),
        idle: Some(limit(limits.idle.map(span))),
        disk: Some(limit(limits.disk.map(Size))),
        output: Some(Size(limits.output)),
        stop_timeout: Some(span(limits.stop_timeout)),
    }
}

fn limit<T>(value: Option<T>) -> Limit<T> {
    value.map_or(Limit::None, Limit::At)
}
