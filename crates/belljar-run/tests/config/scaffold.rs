//! What `init` and `new` write is valid and trusted.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use belljar_record::home::Home;
use belljar_run::config::{
    ConfigError, ConfigFiles, Invocation, LoadedSettings, load, load_settings,
};
use belljar_run::scaffold::{
    AgentAnswer, Answers, Existing, InitReport, RepeatAnswer, ScaffoldError, Template, UntilAnswer,
    init, new_folder,
};
use belljar_spec::manifest::{AgentKind, Usd, WorkspaceMode};
use belljar_spec::{BackendChoice, BackendName, HumanDuration, MainCommand, Size};
use tempfile::TempDir;

struct Place {
    temp: TempDir,
    home: Home,
}

impl Place {
    fn new() -> Self {
        let temp = TempDir::new().unwrap();
        fs::create_dir(temp.path().join("work")).unwrap();
        let home = Home::open_at(temp.path().join("home")).unwrap();
        Self { temp, home }
    }

    fn work(&self) -> PathBuf {
        self.temp.path().join("work").canonicalize().unwrap()
    }

    fn init(&self, answers: &Answers, existing: Existing) -> Result<InitReport, ScaffoldError> {
        init(&self.work(), answers, existing, &BTreeMap::new(), &self.home)
    }

    fn invocation(&self, directory: &Path) -> Invocation {
        let mut invocation =
            Invocation::new(directory.to_owned(), BTreeMap::new(), MainCommand::Agent);
        invocation.config_files = ConfigFiles::Ignore;
        invocation.system = self.temp.path().join("etc");
        invocation
    }

    fn load_settings(&self, directory: &Path) -> Result<LoadedSettings, ConfigError> {
        load_settings(&self.invocation(directory), &self.home)
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

fn agent(kind: AgentKind) -> AgentAnswer {
    let command = match kind {
        AgentKind::Command => vec!["sh".to_owned(), "-c".to_owned(), "true".to_owned()],
        _ => Vec::new(),
    };
    AgentAnswer { kind, command, prompt_file: Some("PROMPT.md".to_owned()) }
}

/// Every answer with every other one.
fn combinations() -> Vec<Answers> {
    let mut all = Vec::new();
    let agents = [None].into_iter().chain(AgentKind::ALL.iter().map(|kind| Some(agent(*kind))));
    let repeats = [
        None,
        Some(RepeatAnswer::default()),
        Some(RepeatAnswer {
            max_iterations: Some(3),
            until: Some(UntilAnswer::File("DONE".into())),
            max_cost: Some(Usd(1.0)),
            max_time: Some(HumanDuration::from_secs(3600)),
        }),
        Some(RepeatAnswer {
            until: Some(UntilAnswer::Says("all done".into())),
            ..RepeatAnswer::default()
        }),
    ];
    for agent in agents {
        for repeat in repeats.iter().filter(|repeat| agent.is_some() || repeat.is_none()) {
            // A file needs a workspace to be in.
            let waits = |repeat: &RepeatAnswer| matches!(repeat.until, Some(UntilAnswer::File(_)));
            let needs_place = repeat.as_ref().is_some_and(waits);
            let fits = |mode: &&WorkspaceMode| !needs_place || **mode != WorkspaceMode::None;
            for mode in WorkspaceMode::ALL.iter().filter(fits) {
                for hosts in [vec![], vec!["pypi.org".to_owned(), "*.example.com:8443".to_owned()]]
                {
                    for (memory, time) in
                        [(None, None), (Some(Size(1 << 50)), Some(HumanDuration::from_secs(9)))]
                    {
                        for (backend, fallback) in [
                            (BackendChoice::Auto, vec![]),
                            (BackendChoice::Jail, vec![BackendName::Docker, BackendName::Podman]),
                        ] {
                            all.push(Answers {
                                backend,
                                fallback,
                                mode: *mode,
                                allow_hosts: hosts.clone(),
                                memory,
                                time,
                                agent: agent.clone(),
                                repeat: repeat.clone(),
                                ..Answers::default()
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

#[test]
fn every_combination_of_answers_loads_and_is_trusted() {
    let place = Place::new();
    let all = combinations();
    assert!(all.len() > 400, "{}", all.len());
    for answers in all {
        place.init(&answers, Existing::Rename).unwrap();
        let loaded = place.load_settings(&place.work());
        let loaded = loaded.unwrap_or_else(|error| panic!("{error}\n{answers:?}"));
        let values = &loaded.settings.values;
        assert_eq!(values.sandbox.workspace.mode, Some(answers.mode));
        assert_eq!(values.agent.kind, answers.agent.as_ref().map(|agent| agent.kind));
        let decides = answers.agent.as_ref().is_none_or(|agent| agent.kind == AgentKind::Command);
        if decides {
            let mut invocation = place.invocation(&place.work());
            if answers.agent.is_none() {
                invocation.command = MainCommand::Argv(vec!["true".into()]);
            }
            let spec = load(&invocation, &place.home).unwrap().spec;
            assert_eq!(spec.agent.is_some(), answers.agent.is_some());
        }
    }
}

#[test]
fn only_the_bytes_that_were_written_are_trusted() {
    let place = Place::new();
    let answers = Answers {
        allow_hosts: vec!["pypi.org".into()],
        agent: Some(agent(AgentKind::Command)),
        ..Answers::default()
    };
    let begun = place.init(&answers, Existing::Refuse).unwrap();
    let prompt = place.work().join("PROMPT.md");
    assert_eq!(begun.prompt_made.unwrap().as_path(), prompt);
    place.load_settings(&place.work()).unwrap();
    let manifest = place.work().join("belljar.toml");
    for path in [&manifest, &prompt] {
        let before = read(path);
        fs::write(path, format!("{before}\n# more\n")).unwrap();
        let error = place.load_settings(&place.work()).unwrap_err();
        assert!(matches!(error, ConfigError::Untrusted { .. }), "{error}");
        fs::write(path, before).unwrap();
        place.load_settings(&place.work()).unwrap();
    }
    // By its path too.
    fs::create_dir(place.work().join("copy")).unwrap();
    for name in ["belljar.toml", "PROMPT.md"] {
        fs::copy(place.work().join(name), place.work().join("copy").join(name)).unwrap();
    }
    let error = place.load_settings(&place.work().join("copy")).unwrap_err();
    assert!(matches!(error, ConfigError::Untrusted { .. }), "{error}");
}

#[test]
fn a_manifest_that_is_there_is_never_lost() {
    let place = Place::new();
    let manifest = place.work().join("belljar.toml");
    fs::write(&manifest, "# mine\n").unwrap();
    let answers = Answers { agent: Some(agent(AgentKind::Command)), ..Answers::default() };
    let error = place.init(&answers, Existing::Refuse).unwrap_err();
    assert!(matches!(error, ScaffoldError::Exists(_)), "{error}");
    assert_eq!(read(&manifest), "# mine\n");
    assert!(!place.work().join("PROMPT.md").exists(), "nothing was made");
    let begun = place.init(&answers, Existing::Rename).unwrap();
    assert_eq!(read(begun.set_aside.unwrap()), "# mine\n");
    assert!(read(&manifest).contains("[agent]"));
    let mut names: Vec<_> =
        fs::read_dir(place.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["PROMPT.md", "belljar.toml", "belljar.toml.old"], "no draft is left");
    // What was kept once is not written over by the next.
    fs::write(&manifest, "# mine again\n").unwrap();
    let begun = place.init(&answers, Existing::Rename).unwrap();
    assert!(begun.set_aside.unwrap().as_path().ends_with("belljar.toml.old2"));
    assert_eq!(read(place.work().join("belljar.toml.old2")), "# mine again\n");
    assert_eq!(read(place.work().join("belljar.toml.old")), "# mine\n");
    assert_eq!(fs::read_dir(place.work()).unwrap().count(), 4, "no draft is left");
}

#[test]
fn no_link_is_followed() {
    let place = Place::new();
    let outside = place.temp.path().join("outside");
    fs::write(&outside, "theirs").unwrap();
    symlink(&outside, place.work().join("belljar.toml")).unwrap();
    let answers = Answers { agent: Some(agent(AgentKind::Command)), ..Answers::default() };
    assert!(matches!(place.init(&answers, Existing::Refuse), Err(ScaffoldError::Exists(_))));
    place.init(&answers, Existing::Rename).unwrap();
    assert_eq!(read(&outside), "theirs");
    assert!(place.work().join("belljar.toml").symlink_metadata().unwrap().is_file());

    fs::remove_file(place.work().join("PROMPT.md")).unwrap();
    symlink(place.temp.path().join("nowhere"), place.work().join("PROMPT.md")).unwrap();
    let error = place.init(&answers, Existing::Rename).unwrap_err();
    assert!(matches!(error, ScaffoldError::Read(_)), "{error}");
    assert!(!place.temp.path().join("nowhere").exists());

    fs::remove_file(place.work().join("belljar.toml")).unwrap();
    fs::create_dir(place.work().join("belljar.toml")).unwrap();
    assert!(matches!(
        place.init(&Answers::default(), Existing::Rename),
        Err(ScaffoldError::NoFile(_))
    ));
}

#[test]
fn a_prompt_that_is_there_stays() {
    let place = Place::new();
    fs::write(place.work().join("PROMPT.md"), "do it").unwrap();
    let answers = Answers { agent: Some(agent(AgentKind::Command)), ..Answers::default() };
    let begun = place.init(&answers, Existing::Refuse).unwrap();
    assert_eq!(begun.prompt_made, None);
    assert_eq!(read(place.work().join("PROMPT.md")), "do it");
    place.load_settings(&place.work()).unwrap();
}

#[test]
fn folders_are_numbered_and_ready() {
    let place = Place::new();
    let make = |name: &str, template, kind| {
        let name = name.parse().unwrap();
        new_folder(&place.work(), &name, template, kind, &BTreeMap::new(), &place.home).unwrap()
    };
    fs::create_dir(place.work().join("041_older")).unwrap();
    for (number, template) in [(42, Template::Loop), (43, Template::Command), (44, Template::Fleet)]
    {
        let folder = make("parser", template, AgentKind::Claude);
        let path = folder.path.as_path();
        assert_eq!(folder.name, format!("{number:03}_parser"));
        assert!(path.join("data").is_dir() && path.join("NOTES.md").is_file());
        assert_eq!(path.join("PROMPT.md").exists(), template != Template::Command);
        assert_eq!(path.join("README.md").exists(), template == Template::Fleet);
        let values = place.load_settings(path).unwrap().settings.values;
        assert_eq!(values.sandbox.workspace.mode, Some(WorkspaceMode::Overlay));
        let notes = read(path.join("NOTES.md"));
        assert!(notes.contains(&format!("belljar diff {}", folder.name)), "{notes}");
        assert!(notes.lines().all(|line| line.chars().count() <= 80), "{notes}");
    }
    let spec = load(&place.invocation(&place.work().join("043_parser")), &place.home).unwrap().spec;
    assert_eq!(spec.agent.unwrap().agent.program.len(), 2);
    assert_eq!(spec.mounts[0].target.to_string(), "/workspace/data");
    assert_eq!(spec.mounts[0].mode, belljar_spec::MountMode::Ro);
}

#[test]
fn folders_made_at_once_have_numbers_of_their_own() {
    let place = Place::new();
    let make = |name: String| {
        let name = name.parse().unwrap();
        let (env, kind) = (BTreeMap::new(), AgentKind::Codex);
        new_folder(&place.work(), &name, Template::Command, kind, &env, &place.home).unwrap().name
    };
    let mut names = std::thread::scope(|scope| {
        let at_once: Vec<_> =
            (0..8).map(|number| scope.spawn(move || make(format!("n{number}")))).collect();
        at_once.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<String>>()
    });
    names.sort();
    let numbers: Vec<&str> = names.iter().map(|name| &name[..3]).collect();
    assert_eq!(numbers, ["001", "002", "003", "004", "005", "006", "007", "008"]);
}
