//! What a manifest asks for beyond the built-in policy. A manifest that asks for nothing beyond it
//! needs nobody's trust; any other is shown to a person first.

use std::path::{Path, PathBuf};

use crate::manifest::{
    AgentKind, Auth, CommandMode, HostPath, Limit, LimitSettings, Manifest, RootfsSetting, Secret,
};
use crate::paths;
use crate::runspec::{BackendChoice, BackendName, MountMode};

/// One thing that a manifest opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Widening {
    pub key: String,
    /// One line, for a person.
    pub what: String,
}

struct Finder<'a> {
    manifest: &'a Manifest,
    directory: &'a Path,
    /// As far as the text tells: the workspace is what the run may change anyway.
    workspace: PathBuf,
    found: Vec<Widening>,
}

/// `directory` is where the manifest lies; `built_in` is [`built_in`](crate::layers::built_in) for
/// this host.
pub fn widenings(manifest: &Manifest, directory: &Path, built_in: &Manifest) -> Vec<Widening> {
    let workspace = match &manifest.sandbox.workspace.path {
        Some(path) => paths::absolute(path.as_path(), directory, None),
        None => paths::clean(directory),
    };
    let mut finder = Finder { manifest, directory, workspace, found: Vec::new() };
    finder.boundary();
    finder.sources();
    finder.environment();
    finder.network();
    finder.limits(&built_in.limits);
    finder.policy();
    finder.agent();
    finder.found
}

impl Finder<'_> {
    fn add(&mut self, key: impl Into<String>, what: impl Into<String>) {
        self.found.push(Widening { key: key.into(), what: what.into() });
    }

    /// `~` is never inside: nobody knows here where it leads.
    fn inside(&self, path: &HostPath, tree: &Path) -> bool {
        let home = path.as_path().starts_with("~");
        !home && paths::absolute(path.as_path(), self.directory, None).starts_with(tree)
    }

    fn boundary(&mut self) {
        let sandbox = &self.manifest.sandbox;
        if sandbox.backend == Some(BackendChoice::Host) {
            self.add("sandbox.backend", "runs the command on the host, without any boundary");
        }
        if sandbox.fallback.iter().flatten().any(|backend| *backend == BackendName::Host) {
            self.add("sandbox.fallback", "may run the command on the host, without any boundary");
        }
        if let Some(runtime) = &sandbox.oci_runtime {
            let runtime = crate::text::escape(runtime.as_bytes());
            self.add(
                "sandbox.oci_runtime",
                format!("has the engine execute the runtime {runtime}"),
            );
        }
    }

    fn sources(&mut self) {
        let sandbox = &self.manifest.sandbox;
        if let Some(path) = &sandbox.workspace.path
            && !self.inside(path, self.directory)
        {
            self.add(
                "sandbox.workspace.path",
                format!("works on {}, outside its own directory", path.0),
            );
        }
        if let Some(RootfsSetting::Directory(path)) = &sandbox.rootfs
            && !self.inside(path, &self.workspace)
        {
            self.add("sandbox.rootfs", format!("shows {} inside, as the root directory", path.0));
        }
        for (index, mount) in sandbox.mounts.iter().flat_map(|mounts| &mounts.0).enumerate() {
            if !self.inside(&mount.source, &self.workspace) {
                let access = match mount.mode.unwrap_or(MountMode::Ro) {
                    MountMode::Rw => "lets the run change",
                    MountMode::Ro | MountMode::Overlay => "lets the run read",
                };
                let what = format!("{access} {}, outside the workspace", mount.source.0);
                self.add(format!("sandbox.mounts[{index}]"), what);
            }
        }
        for (index, tool) in sandbox.tools.iter().flat_map(|tools| &tools.0).enumerate() {
            self.add(
                format!("sandbox.tools[{index}]"),
                format!("lets the run read and execute {}", tool.0),
            );
        }
        for (index, path) in sandbox.allow_source.iter().flat_map(|paths| &paths.0).enumerate() {
            let what = format!("lets {} be mounted although it is sensitive", path.0);
            self.add(format!("sandbox.allow_source[{index}]"), what);
        }
        for (index, name) in sandbox.allow_control.iter().flat_map(|names| &names.0).enumerate() {
            let what = format!("lets the run change {}, which executes on the host later", name.0);
            self.add(format!("sandbox.allow_control[{index}]"), what);
        }
    }

    fn environment(&mut self) {
        let sandbox = &self.manifest.sandbox;
        for (index, name) in sandbox.pass_env.iter().flat_map(|names| &names.0).enumerate() {
            let what = format!("lets the run read the host's variable {}", name.0);
            self.add(format!("sandbox.pass_env[{index}]"), what);
        }
        for (index, path) in sandbox.env_file.iter().flat_map(|paths| &paths.0).enumerate() {
            self.add(format!("sandbox.env_file[{index}]"), format!("lets the run read {}", path.0));
        }
    }

    fn network(&mut self) {
        let manifest = self.manifest;
        let lists = [
            ("network.allow", &manifest.network.allow, "lets the run reach"),
            (
                "network.allow_private",
                &manifest.network.allow_private,
                "lets the run reach, in your own network,",
            ),
            ("setup.network", &manifest.setup.network, "lets the set-up reach"),
        ];
        for (key, hosts, what) in lists {
            for host in hosts.iter().flatten() {
                self.add(key, format!("{what} {}", crate::text::escape(host.as_bytes())));
            }
        }
        for port in manifest.network.publish.iter().flatten() {
            let what =
                format!("opens a port of the host: {}", crate::text::escape(port.as_bytes()));
            self.add("network.publish", what);
        }
        for (index, secret) in manifest.secret.iter().flat_map(|secrets| &secrets.0).enumerate() {
            self.secret(index, secret);
        }
        for (index, route) in manifest.route.iter().flat_map(|routes| &routes.0).enumerate() {
            let what = format!(
                "leads port {} to {}",
                route.listen,
                crate::text::escape(route.to.as_bytes())
            );
            self.add(format!("route[{index}]"), what);
        }
    }

    fn secret(&mut self, index: usize, secret: &Secret) {
        let shown = |text: &str| crate::text::escape(text.as_bytes());
        let what = format!("sends the secret {} to {}", shown(&secret.env), shown(&secret.host));
        self.add(format!("secret[{index}]"), what);
        if let Some(command) = &secret.command {
            let what = format!("executes on the host: {}", shown(&command.join(" ")));
            self.add(format!("secret[{index}].command"), what);
        }
        if let Some(file) = &secret.file {
            self.add(format!("secret[{index}].file"), format!("reads {}", file.0));
        }
    }

    fn limits(&mut self, built_in: &LimitSettings) {
        let limits = &self.manifest.limits;
        let above = [
            above("memory", limits.memory, built_in.memory),
            above("cpus", limits.cpus, built_in.cpus),
            above("pids", limits.pids, built_in.pids),
            above("time", limits.time, built_in.time),
            above("idle", limits.idle, built_in.idle),
            above("disk", limits.disk, built_in.disk),
            above("output", limits.output.map(Limit::At), built_in.output.map(Limit::At)),
            above(
                "stop_timeout",
                limits.stop_timeout.map(Limit::At),
                built_in.stop_timeout.map(Limit::At),
            ),
        ];
        self.found.extend(above.into_iter().flatten());
    }

    fn policy(&mut self) {
        let policy = &self.manifest.policy;
        for (clause, reason) in policy.waive.iter().flat_map(|waive| &waive.0) {
            let reason = crate::text::escape(reason.as_bytes());
            let key = crate::manifest::node::join("policy.waive", clause);
            self.add(key, format!("lets {clause} be missing: {reason}"));
        }
        if self.manifest.commands.mode == Some(CommandMode::Off) {
            self.add("commands.mode", "turns the rules on commands off");
        }
        if self.manifest.commands.allow.as_ref().is_some_and(|rules| !rules.is_empty()) {
            self.add("commands.allow", "allows commands that the built-in rules deny");
        }
        let retention = &self.manifest.retention;
        if retention.runs.is_some() || retention.sandboxes.is_some() {
            self.add("retention", "decides which older records and sandboxes are removed");
        }
    }

    fn agent(&mut self) {
        let agent = &self.manifest.agent;
        match agent.kind {
            Some(AgentKind::Claude | AgentKind::Codex | AgentKind::Gemini) => {
                let what = "lets the run use your account with that agent's service";
                self.add("agent.kind", what);
            }
            Some(AgentKind::Command) | None => {}
        }
        if let Some(program) = &agent.program {
            self.add("agent.program", format!("lets the run read and execute {program}"));
        }
        if agent.auth == Some(Auth::Files) {
            self.add("agent.auth", "copies your login with the agent's service into the run");
        }
        if let Some(path) = &agent.prompt_file
            && !self.inside(path, self.directory)
        {
            self.add("agent.prompt_file", format!("lets the run read {}", path.0));
        }
    }
}

fn above<T: Copy + PartialOrd + ToString>(
    key: &str,
    wanted: Option<Limit<T>>,
    built_in: Option<Limit<T>>,
) -> Option<Widening> {
    let (shown, most) = match (wanted?, built_in?) {
        (_, Limit::None) => return None,
        (Limit::At(value), Limit::At(most)) if value <= most => return None,
        (Limit::At(value), Limit::At(most)) => (value.to_string(), most),
        (Limit::None, Limit::At(most)) => ("none".to_owned(), most),
    };
    let what = format!("{shown} is above the built-in {}", most.to_string());
    Some(Widening { key: format!("limits.{key}"), what })
}
