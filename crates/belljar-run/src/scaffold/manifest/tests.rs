#![allow(clippy::unwrap_used, reason = "a test")]

use belljar_spec::manifest::{AgentKind, Limit, Usd};
use belljar_spec::{BackendChoice, BackendName, HumanDuration, Manifest, Size};

use super::*;

fn parsed(answers: &Answers) -> (String, Manifest) {
    let text = manifest_text(answers).unwrap();
    let values = Manifest::parse(text.as_bytes(), &"belljar.toml".into());
    let values = values.unwrap_or_else(|error| panic!("{error}\n{text}"));
    (text, values)
}

fn command(words: &[&str]) -> AgentAnswer {
    let command = words.iter().map(|word| (*word).to_owned()).collect();
    AgentAnswer { kind: AgentKind::Command, command, prompt_file: None }
}

#[test]
fn the_defaults_say_what_they_are() {
    let (text, values) = parsed(&Answers::default());
    assert_eq!(values.sandbox.backend, Some(BackendChoice::Auto));
    assert_eq!(values.sandbox.workspace.mode, Some(WorkspaceMode::Overlay));
    assert_eq!((values.network.allow, values.limits.memory, values.agent.kind), (None, None, None));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn every_answer_is_read_back() {
    let answers = Answers {
        backend: BackendChoice::Docker,
        fallback: vec![BackendName::Podman, BackendName::Jail],
        mode: WorkspaceMode::Rw,
        allow_hosts: vec!["pypi.org".into(), "*.example.com:8443".into()],
        memory: Some(Size(3 << 30)),
        time: Some(HumanDuration::from_secs(5400)),
        agent: Some(AgentAnswer {
            kind: AgentKind::Codex,
            command: Vec::new(),
            prompt_file: Some("what \"to\" do\\.md".into()),
        }),
        repeat: Some(RepeatAnswer {
            max_iterations: Some(7),
            until: Some(UntilAnswer::Says("ALL\nDONE \u{7f}".into())),
            max_cost: Some(Usd(2.5)),
            max_time: Some(HumanDuration::from_secs(60)),
        }),
        data: Some("data".into()),
        name: Some("nightly".into()),
    };
    let (_, values) = parsed(&answers);
    let sandbox = &values.sandbox;
    assert_eq!(sandbox.backend, Some(answers.backend));
    assert_eq!(sandbox.fallback.as_ref(), Some(&answers.fallback));
    assert_eq!(sandbox.workspace.mode, Some(answers.mode));
    assert_eq!(sandbox.name.as_ref().unwrap().as_str(), "nightly");
    let mount = &sandbox.mounts.as_ref().unwrap().0[0];
    assert_eq!(mount.target.to_string(), "/workspace/data");
    assert_eq!(values.network.allow.as_ref(), Some(&answers.allow_hosts));
    assert_eq!(values.limits.memory, answers.memory.map(Limit::At));
    assert_eq!(values.limits.time, answers.time.map(Limit::At));
    assert_eq!(values.agent.kind, Some(AgentKind::Codex));
    let prompt = values.agent.prompt_file.as_ref().unwrap();
    assert_eq!(prompt.as_path().to_str(), Some("what \"to\" do\\.md"));
    assert_eq!(values.r#loop.max_iterations, Some(7));
    assert_eq!(values.r#loop.max_cost_usd, Some(Usd(2.5)));
    assert_eq!(values.r#loop.max_time, Some(HumanDuration::from_secs(60)));
    let until = values.r#loop.until.as_ref().unwrap();
    assert_eq!(until.says.as_deref(), Some("ALL\nDONE \u{7f}"));
}

#[test]
fn hostile_answers_stay_strings() {
    let evil = "x\"]\n[sandbox]\nbackend = \"host\"\n#\u{1}\\";
    let answers = Answers {
        agent: Some(command(&[evil, evil])),
        repeat: Some(RepeatAnswer {
            until: Some(UntilAnswer::Says(evil.into())),
            ..RepeatAnswer::default()
        }),
        ..Answers::default()
    };
    let (_, values) = parsed(&answers);
    assert_eq!(values.sandbox.backend, Some(BackendChoice::Auto));
    assert_eq!(values.agent.command.unwrap(), [evil, evil]);
    assert_eq!(values.r#loop.until.unwrap().says.as_deref(), Some(evil));
}

#[test]
fn answers_that_do_not_fit_together_are_refused() {
    let base = Answers { agent: Some(command(&["true"])), ..Answers::default() };
    manifest_text(&base).unwrap();
    let claude = AgentAnswer {
        kind: AgentKind::Claude,
        command: Vec::new(),
        prompt_file: Some("P.md".into()),
    };
    manifest_text(&Answers { agent: Some(claude.clone()), ..base.clone() }).unwrap();
    let until = |file: &str| RepeatAnswer {
        until: Some(UntilAnswer::File(file.into())),
        ..RepeatAnswer::default()
    };
    manifest_text(&Answers { repeat: Some(until("out/DONE")), ..base.clone() }).unwrap();
    let wrong = [
        Answers { backend: BackendChoice::Host, ..base.clone() },
        Answers { fallback: vec![BackendName::Host], ..base.clone() },
        Answers { allow_hosts: vec!["not a host".into()], ..base.clone() },
        Answers { memory: Some(Size(0)), ..base.clone() },
        Answers { time: Some(HumanDuration::from_secs(0)), ..base.clone() },
        Answers { agent: None, repeat: Some(RepeatAnswer::default()), ..base.clone() },
        Answers { agent: Some(command(&[])), ..base.clone() },
        Answers { agent: Some(command(&[""])), ..base.clone() },
        Answers {
            agent: Some(AgentAnswer { command: vec!["x".into()], ..claude.clone() }),
            ..base.clone()
        },
        Answers { agent: Some(AgentAnswer { prompt_file: None, ..claude }), ..base.clone() },
        Answers { repeat: Some(until("../DONE")), ..base.clone() },
        Answers { repeat: Some(until("/DONE")), ..base.clone() },
        Answers { data: Some("d".into()), mode: WorkspaceMode::None, ..base },
    ];
    for answers in wrong {
        assert!(manifest_text(&answers).is_err(), "{answers:?}");
    }
}
