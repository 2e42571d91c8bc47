//! Resolving settings to a run.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::common::{Given, host, request};
use belljar_spec::env_file::EnvLine;
use belljar_spec::manifest::OutputFormat;
use belljar_spec::{
    Clause, DecidedBy, FoundGitDirectory, GitDirectory, GitIdentity, GitPart, HostFacts,
    ImageDefaults, LinkForm, MainCommand, Manifest, Mount, MountMode, OsText, Request,
    ResolveError, Rootfs, RunSpec, Screen, Terminal, User, resolve,
};

fn run(manifest: &str) -> Result<RunSpec, ResolveError> {
    Given { manifest, ..Given::default() }.resolve()
}

fn refused(manifest: &str) -> String {
    run(manifest).unwrap_err().to_string()
}

#[test]
fn nothing_said_is_the_built_in_run() {
    let spec = run("").unwrap();
    let workspace =
        Mount { source: "/proj/p".into(), target: "/workspace".into(), mode: MountMode::Rw };
    assert_eq!(spec.workspace, Some(workspace));
    assert_eq!(spec.workdir, "/workspace".into());
    assert_eq!(spec.user, User { uid: 1000, gid: 1000 });
    assert_eq!(spec.rootfs, Rootfs::Host);
    assert_eq!(spec.image, "debian:stable-slim");
    assert_eq!(spec.limits.pids, Some(2048));
    assert_eq!(spec.limits.memory, Some(crate::common::MEMORY / 2));
    assert_eq!(spec.manifest, Some("/proj/p/belljar.toml".into()));
    assert!(spec.network_allow.is_empty() && spec.waivers.is_empty());
    assert_eq!(spec.hash(), run("").unwrap().hash());
    assert_ne!(spec.hash(), run("[limits]\npids = 2\n").unwrap().hash());
}

#[test]
fn the_workspace_follows_the_settings() {
    let spec = run("[sandbox]\nworkspace = { path = 'src', mode = 'overlay', target = 'same' }\n");
    let spec = spec.unwrap();
    let workspace = spec.workspace.unwrap();
    assert_eq!(workspace.source, "/proj/p/src".into());
    assert_eq!(workspace.target, workspace.source);
    assert_eq!(workspace.mode, MountMode::Overlay);
    assert_eq!(spec.workdir, "/proj/p/src".into());
    assert_eq!(spec.manifest, None, "it is outside");
}

#[test]
fn no_workspace_starts_in_the_home_directory() {
    let spec = run("[sandbox]\nworkspace = { mode = 'none' }\n").unwrap();
    assert_eq!((spec.workspace, spec.workdir), (None, "/home/agent".into()));
    assert_eq!(spec.manifest, None);
}

#[test]
fn a_directory_named_above_none_is_meant() {
    let none = "[sandbox]\nworkspace = { mode = 'none' }\n";
    let flags = &["sandbox.workspace.path=/srv/x"][..];
    let spec = Given { manifest: none, flags, ..Given::default() }.resolve().unwrap();
    assert_eq!(spec.workspace.unwrap().source, "/srv/x".into());
    let flags = &["sandbox.workspace.mode=none"][..];
    let path = "[sandbox]\nworkspace = { path = '/srv/x' }\n";
    let spec = Given { manifest: path, flags, ..Given::default() }.resolve().unwrap();
    assert_eq!(spec.workspace, None);
}

#[test]
fn a_workdir_may_be_relative_to_the_workspace() {
    assert_eq!(run("[sandbox]\nworkdir = 'src'\n").unwrap().workdir, "/workspace/src".into());
    assert_eq!(run("[sandbox]\nworkdir = '/tmp'\n").unwrap().workdir, "/tmp".into());
    assert!(refused("[sandbox]\nworkdir = '../x'\n").contains("\"..\""));
}

#[test]
fn reserved_targets_are_refused() {
    let at = |target: &str| {
        run(&format!("[sandbox]\nmounts = [{{ source = 'd', target = '{target}' }}]\n"))
    };
    for good in [
        "/data",
        "/opt/x",
        "/workspace/data",
        "/home/agent/.config/x",
        "/library",
        "/tmp/x",
        "/srv//x/./y",
    ] {
        assert!(at(good).is_ok(), "{good}");
    }
    for bad in [
        "/",
        "/.",
        "/proc",
        "/proc/x",
        "/dev/shm",
        "/sys",
        "/usr/share/x",
        "/etc",
        "/bin",
        "/sbin/x",
        "/lib",
        "/lib64/x",
        "/home",
        "/home/agent",
        "data",
        "/data/../etc",
        "",
    ] {
        assert!(matches!(at(bad), Err(ResolveError::Target { .. })), "{bad}");
    }
    assert_eq!(at("/srv//x/./y").unwrap().mounts[0].target, "/srv/x/y".into());
}

#[test]
fn a_root_directory_of_its_own_frees_the_system_directories_only() {
    let at = |target: &str| {
        run(&format!(
            "[sandbox]\nrootfs = '/srv/r'\nmounts = [{{ source = 'd', target = '{target}' }}]\n"
        ))
    };
    assert!(at("/usr/share/x").is_ok());
    assert!(at("/etc/x").is_ok());
    for bad in ["/", "/proc/x", "/dev", "/sys", "/home/agent"] {
        assert!(at(bad).is_err(), "{bad}");
    }
}

#[test]
fn every_target_is_taken_once() {
    let two = |a: &str, b: &str| {
        let mounts =
            format!("{{ source = 'a', target = '{a}' }}, {{ source = 'b', target = '{b}' }}");
        run(&format!("[sandbox]\nmounts = [{mounts}]\n"))
    };
    assert!(two("/a", "/b").is_ok());
    assert!(two("/a", "/a/b").is_ok());
    assert!(matches!(two("/a", "/a/."), Err(ResolveError::SameTarget { .. })));
    assert!(two("/workspace", "/b").unwrap_err().to_string().contains("sandbox.workspace.target"));
    let tmpfs = "[sandbox]\ntmpfs = ['/a']\nmounts = [{ source = 'a', target = '/a' }]\n";
    assert!(matches!(run(tmpfs), Err(ResolveError::SameTarget { .. })));
}

#[test]
fn a_mount_over_the_workspace_is_refused_and_inner_ones_come_later() {
    let hidden =
        "[sandbox]\nworkspace = { target = '/w/x' }\nmounts = [{ source = 'a', target = '/w' }]\n";
    assert!(refused(hidden).contains("would hide the workspace"));
    let nested = "[sandbox]\nmounts = [{ source = 'a', target = '/d/e' }, { source = 'b', target = '/d' }]\n";
    let targets: Vec<OsText> = run(nested).unwrap().mounts.into_iter().map(|m| m.target).collect();
    assert_eq!(targets, ["/d".into(), "/d/e".into()]);
}

#[test]
fn tools_are_on_the_path_and_rustup_finds_itself() {
    let spec = run("[sandbox]\ntools = ['~/.cargo', '~/.rustup', '/usr/local/go']\n").unwrap();
    let path = "/home/agent/.local/bin:/home/u/.cargo/bin:/home/u/.rustup/bin:/usr/local/go/bin:\
                /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(spec.env["PATH"].to_str(), Some(path));
    assert_eq!(spec.env["RUSTUP_HOME"].to_str(), Some("/home/u/.rustup"));
    for bad in ["/", "/etc", "/proc/x", "a:b"] {
        assert!(run(&format!("[sandbox]\ntools = ['{bad}']\n")).is_err(), "{bad}");
    }
}

#[test]
fn the_environment_holds_what_was_named_and_nothing_else() {
    let spec = run("").unwrap();
    let names: Vec<&str> = spec.env.keys().map(String::as_str).collect();
    assert_eq!(names, ["HOME", "LANG", "LOGNAME", "PATH", "USER"]);
    assert_eq!(spec.env["LANG"].to_str(), Some("C.UTF-8"), "not the host's");

    let spec = run("[sandbox]\nenv = { A = 'b' }\npass_env = ['PASSED', 'NOT_THERE']\n").unwrap();
    assert_eq!(spec.env["A"].to_str(), Some("b"));
    assert_eq!(spec.env["PASSED"].to_str(), Some("from host"));
    assert!(!spec.env.contains_key("NOT_THERE") && !spec.env.contains_key("SECRET"));
}

#[test]
fn the_terminals_name_is_passed_to_a_terminal() {
    let settings = Given::default().settings();
    let with = |terminal, screen| {
        let request = belljar_spec::Request { terminal, screen, ..request() };
        resolve(&settings, &request, &host()).unwrap().env.contains_key("TERM")
    };
    assert!(!with(Terminal::None, Screen::NotTerminal));
    assert!(with(Terminal::Pty, Screen::NotTerminal));
    assert!(with(Terminal::None, Screen::Terminal));
    let mut zone = host();
    zone.env.insert("TZ".into(), "UTC".into());
    let spec = resolve(&settings, &request(), &zone).unwrap();
    assert_eq!(spec.env["TZ"].to_str(), Some("UTC"));
}

#[test]
fn the_higher_layer_says_what_a_variable_is() {
    let value = |given: Given<'_>| given.resolve().unwrap().env["PASSED"].to_string();
    let written = "[sandbox]\nenv = { PASSED = 'written' }\n";
    let passed = "[sandbox]\npass_env = ['PASSED']\n";
    assert_eq!(value(Given { user: passed, manifest: written, ..Given::default() }), "written");
    assert_eq!(value(Given { user: written, manifest: passed, ..Given::default() }), "from host");
    let both = "[sandbox]\npass_env = ['PASSED']\nenv = { PASSED = 'written' }\n";
    assert_eq!(value(Given { manifest: both, ..Given::default() }), "written");
}

#[test]
fn files_of_variables_come_before_what_is_written() {
    let given = Given {
        manifest: "[sandbox]\nenv_file = ['e']\nenv = { A = 'manifest' }\n",
        ..Given::default()
    };
    let settings = given.settings();
    let set = |name: &str, value: &str| EnvLine::Set { name: name.into(), value: value.into() };
    let lines = vec![set("A", "file"), set("B", "file"), EnvLine::Pass { name: "PASSED".into() }];
    let mut with_file = request();
    with_file.env_files = BTreeMap::from([("/proj/p/e".into(), lines)]);
    let env = resolve(&settings, &with_file, &host()).unwrap().env;
    assert_eq!(env["A"].to_str(), Some("manifest"));
    assert_eq!(env["B"].to_str(), Some("file"));
    assert_eq!(env["PASSED"].to_str(), Some("from host"));
    assert!(resolve(&settings, &request(), &host()).is_err(), "a file that was not read");
}

#[test]
fn the_right_clauses_are_required() {
    let has = |manifest: &str, clause| run(manifest).unwrap().required.contains(&clause);
    let always = [Clause::FsMounts, Clause::NetSealed, Clause::LimitTime, Clause::AuditOutside];
    for clause in always {
        assert!(has("", clause), "{clause}");
    }
    for clause in [Clause::IdUnique, Clause::KernelSeparate, Clause::LimitMemory, Clause::FsQuota] {
        assert!(!has("", clause), "{clause}");
    }
    assert!(!has("", Clause::FsSockets), "the default workspace is writable");
    assert!(has("[sandbox]\nworkspace = { mode = 'overlay' }\n", Clause::FsSockets));
    assert!(has("[sandbox]\nworkspace = { mode = 'none' }\n", Clause::FsSockets));
    for (limit, clause) in [
        ("memory = '1g'", Clause::LimitMemory),
        ("cpus = 1", Clause::LimitCpu),
        ("pids = 10", Clause::LimitPids),
        ("disk = '1g'", Clause::FsQuota),
    ] {
        assert!(has(&format!("[limits]\n{limit}\n"), clause), "{clause}");
    }
    assert!(!has("[limits]\nmemory = 'none'\n", Clause::LimitMemory));
    assert!(has("[policy]\nrequire = ['kernel.separate']\n", Clause::KernelSeparate));
}

#[test]
fn all_is_waived_on_the_host_backend_alone() {
    let all = "[policy]\nwaive = { all = 'a test', 'fs.quota' = 'its own reason' }\n";
    assert_eq!(run(all), Err(ResolveError::WaiveAll));
    let host = run(&format!("[sandbox]\nbackend = 'host'\n{all}")).unwrap();
    assert_eq!(host.waivers.len(), Clause::ALL.len());
    let quota = host.waivers.iter().find(|waiver| waiver.clause == Clause::FsQuota).unwrap();
    assert_eq!(quota.reason, "its own reason");
    let one = run("[policy]\nwaive = { 'fs.quota' = 'why' }\n").unwrap();
    assert_eq!(one.waivers.len(), 1);
}

#[test]
fn hosts_are_checked_and_kept() {
    let spec = run("[network]\nallow = ['a.example:443', '*.b.example']\n").unwrap();
    assert_eq!(spec.network_allow, ["a.example:443", "*.b.example"]);
    assert!(refused("[network]\nallow = ['http://a']\n").contains("is not a host rule"));
}

#[test]
fn a_command_needs_a_name() {
    let settings = Given::default().settings();
    let with = |command: Vec<OsText>| {
        let command = belljar_spec::MainCommand::Argv(command);
        resolve(&settings, &belljar_spec::Request { command, ..request() }, &host())
    };
    assert!(with(vec!["a".into(), "".into()]).is_ok());
    let waiting = belljar_spec::Request { command: belljar_spec::MainCommand::None, ..request() };
    assert!(resolve(&settings, &waiting, &host()).unwrap().command.is_empty());
    assert_eq!(with(vec![]), Err(ResolveError::NoCommand));
    assert_eq!(with(vec!["".into()]), Err(ResolveError::NoCommand));
    let nul = OsText::from_bytes(b"a\0".to_vec());
    assert_eq!(with(vec!["a".into(), nul]), Err(ResolveError::NulInCommand));
}

#[test]
fn paths_that_are_not_utf8_go_through() {
    let settings = Given::default().settings();
    let mut request = request();
    request.default_workspace = OsStr::from_bytes(b"/proj/\xff").into();
    request.manifest = Some(OsStr::from_bytes(b"/proj/\xff/belljar.toml").into());
    let spec = resolve(&settings, &request, &host()).unwrap();
    assert_eq!(spec.workspace.as_ref().unwrap().source.as_bytes(), b"/proj/\xff");
    assert_eq!(spec.manifest.as_ref().unwrap().as_bytes(), b"/proj/\xff/belljar.toml");
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<RunSpec>(&json).unwrap(), spec);
}

#[test]
fn a_repository_elsewhere_goes_with_its_workspace() {
    let directory = GitDirectory {
        link: "/proj/p/.git".into(),
        link_hash: "h".into(),
        path: "/srv/repo/.git".into(),
        part: GitPart::Linked { name: "p".into() },
    };
    let found = |link| FoundGitDirectory {
        directory: directory.clone(),
        target: "/repo/.git".into(),
        workspace_target: "/proj/p".into(),
        link,
    };
    let with = |text: &str, ceiling: Option<&str>, link| {
        let settings = Given { manifest: text, ceiling, ..Given::default() }.settings();
        let request = Request { git_directory: Some(found(link)), ..request() };
        resolve(&settings, &request, &host())
    };
    for mode in ["ro", "rw", "overlay"] {
        let text = format!("[sandbox]\nworkspace.mode = '{mode}'\n");
        let spec = with(&text, None, LinkForm::Relative).unwrap();
        let workspace = spec.workspace.as_ref().unwrap();
        assert_eq!((workspace.mode.name(), &workspace.target), (mode, &"/proj/p".into()));
        assert_eq!(spec.workdir, workspace.target);
        let [mount] = spec.mounts.as_slice() else { panic!("{:?}", spec.mounts) };
        assert_eq!((&mount.source, &mount.target), (&directory.path, &"/repo/.git".into()));
        assert_eq!(mount.mode, workspace.mode);
        assert_eq!(spec.git_directory.as_deref(), Some(&directory));
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<RunSpec>(&json).unwrap(), spec);
    }
    let elsewhere = "[sandbox]\nworkspace.target = '/w'\n";
    let spec = with(elsewhere, None, LinkForm::Absolute).unwrap();
    assert_eq!(spec.workspace.unwrap().target, "/w".into());
    let refused = with(elsewhere, None, LinkForm::Relative).unwrap_err().to_string();
    assert!(refused.contains("relative path"), "{refused}");
    let ceiling = "mounts = ['/proj']\n";
    let refused = with("", Some(ceiling), LinkForm::Absolute).unwrap_err().to_string();
    assert!(refused.contains("sandbox.git") && refused.contains("/srv/repo/.git"), "{refused}");
    let without = Given { ceiling: Some(ceiling), ..Given::default() }.resolve().unwrap();
    assert_eq!(without.workspace.unwrap().target, "/workspace".into());
    let reserved =
        FoundGitDirectory { target: "/usr/src/.git".into(), ..found(LinkForm::Absolute) };
    let request = Request { git_directory: Some(reserved), ..request() };
    assert!(resolve(&Given::default().settings(), &request, &host()).is_err());
}

#[test]
fn commits_have_the_operators_name_unless_a_layer_says_otherwise() {
    let identity = |name: &str| GitIdentity::new(Some(name), Some("x@example.org"));
    let host = HostFacts { git_identity: identity("Ann"), ..host() };
    let author = |text: &str| {
        let settings = Given { manifest: text, ..Given::default() }.settings();
        resolve(&settings, &request(), &host).unwrap().git_identity
    };
    assert_eq!(author(""), identity("Ann"));
    assert_eq!(author("[sandbox]\ngit_identity = true\n"), identity("Ann"));
    assert_eq!(author("[sandbox]\ngit_identity = false\n"), None);
    let named = "[sandbox]\ngit_identity = { name = 'Bo', email = 'x@example.org' }\n";
    assert_eq!(author(named), identity("Bo"));
    for (bad, why) in [
        ("'Ann'", "true, false, or"),
        ("{ name = 'Bo' }", "\"email\" is missing"),
        ("{ name = 'Bo', email = '' }", "not empty"),
        ("{ name = \"B\\no\", email = 'x' }", "no control characters"),
    ] {
        let refused = Manifest::parse(
            format!("[sandbox]\ngit_identity = {bad}\n").as_bytes(),
            &"m.toml".into(),
        );
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(why), "{bad}: {refused}");
    }
}

#[test]
fn a_shell_is_an_absolute_path_that_fits_into_a_line_of_accounts() {
    let shell = |text: &str| {
        let text = format!("[sandbox]\nshell = {text}\n");
        Manifest::parse(text.as_bytes(), &"m.toml".into()).map(|found| found.sandbox.shell)
    };
    assert_eq!(shell("'/bin/zsh'").unwrap().unwrap().0, "/bin/zsh");
    assert_eq!(run("[sandbox]\nshell = '/bin/zsh'\n").unwrap().shell.as_deref(), Some("/bin/zsh"));
    for bad in
        ["'zsh'", "'./zsh'", "''", "'/bin/../x'", "\"/bin/sh\\nroot:x:0:0\"", "'/bin/a:b'", "true"]
    {
        assert!(shell(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_agent_on_a_terminal_has_no_prompt_and_no_loop() {
    let text = "[agent]\nkind = 'codex'\nmodel = 'm'\nargs = ['-x']\nprompt = 'p'\n[loop]\nmax_iterations = 3\n";
    let request = |command| belljar_spec::Request { command, ..request() };
    let resolved = |text: &str, command| {
        let settings = Given { manifest: text, ..Given::default() }.settings();
        resolve(&settings, &request(command), &host())
    };
    let spec = resolved(text, MainCommand::AgentTerminal).unwrap();
    assert!(spec.agent.is_none());
    let agent = spec.agent_spec().unwrap();
    assert_eq!((agent.prompt.as_str(), agent.model.as_deref()), ("", Some("m")));
    assert_eq!(spec.workspace.unwrap().mode, MountMode::Overlay);
    let driven = resolved(text, MainCommand::Agent).unwrap();
    assert!(driven.terminal_agent.is_none(), "control");
    assert_eq!(driven.agent_spec().unwrap().prompt, "p");
    let plain = "[agent]\nkind = 'command'\ncommand = ['x']\n";
    let refused = resolved(plain, MainCommand::AgentTerminal).unwrap_err().to_string();
    assert!(refused.contains("belljar run -t COMMAND"), "{refused}");
}

#[test]
fn a_format_is_for_a_command() {
    let parse = |kind: &str| {
        let text = format!("[agent]\nkind = '{kind}'\nformat = 'codex'\ncommand = ['x']\n");
        Manifest::parse(text.as_bytes(), &"m.toml".into())
    };
    assert_eq!(parse("command").unwrap().agent.format, Some(OutputFormat::Codex));
    let refused = parse("claude").unwrap_err().to_string();
    assert!(refused.contains("format is for the kind \"command\""), "{refused}");
}

#[test]
fn an_image_that_a_layer_names_is_the_root() {
    let spec = run("[sandbox]\nimage = 'tools:1'\n").unwrap();
    assert_eq!((spec.rootfs, spec.image.as_str()), (Rootfs::Image, "tools:1"));
    assert_eq!(spec.image_defaults.user, DecidedBy::Image);
    assert_eq!(spec.image_defaults.workdir, DecidedBy::Run, "the workspace's place stays");
    // The built-in name is for engines.
    assert_eq!(run("").unwrap().rootfs, Rootfs::Host);
    for root in ["host", "/srv/root"] {
        let manifest = format!("[sandbox]\nimage = 'tools:1'\nrootfs = '{root}'\n");
        let why = refused(&manifest);
        assert!(why.contains("sandbox.image and sandbox.rootfs"), "{why}");
        assert!(why.contains("/proj/p/belljar.toml"), "{why}");
    }
    // An engine has no other root than its image.
    let engine = "[sandbox]\nbackend = 'docker'\nimage = 'tools:1'\nrootfs = 'host'\n";
    assert_eq!(run(engine).unwrap().rootfs, Rootfs::Host);
}

#[test]
fn only_what_nobody_decided_is_left_to_the_image() {
    let none = "[sandbox]\nimage = 'tools:1'\nworkspace = { mode = 'none' }\n";
    let spec = run(none).unwrap();
    assert_eq!(spec.image_defaults.workdir, DecidedBy::Image);
    assert_eq!(spec.image_defaults.command, DecidedBy::Run, "there is a command");
    assert_eq!(spec.image_defaults.entrypoint, None);
    let decided = run(&format!("{none}workdir = '/x'\nuser = '5:6'\nentrypoint = []\n")).unwrap();
    let defaults = ImageDefaults { entrypoint: Some(Vec::new()), ..ImageDefaults::default() };
    assert_eq!(decided.image_defaults, defaults);
    assert_eq!(decided.user, User { uid: 5, gid: 6 });
}

#[test]
fn without_a_command_and_an_agent_the_image_has_the_command() {
    let by_image = |manifest: &str| {
        let mut request = request();
        request.command = MainCommand::Agent;
        let settings = Given { manifest, ..Given::default() }.settings();
        resolve(&settings, &request, &host()).unwrap().image_defaults.command
    };
    assert_eq!(by_image("[sandbox]\nimage = 'tools:1'\n"), DecidedBy::Image);
    assert_eq!(by_image(""), DecidedBy::Run);
}
