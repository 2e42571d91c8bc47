//! A model service behind another name: the manifests of docs/agents.md, as they are, with the real agents.

use belljar_testkit::{Call, RealAgent, Turn};

use crate::stage::{Place, Stage, with_service_at};

const GATEWAY: &str = "gateway.example";
const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agents.md"));

/// The blocks of this kind below a heading of the page.
fn blocks(kind: &str) -> Vec<String> {
    let (_, section) = PAGE.split_once("\n## Gateways\n").expect("the page has the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let fence = format!("```{kind}\n");
    let blocks = section.split(&fence).skip(1);
    blocks.filter_map(|block| Some(block.split_once("```")?.0.to_owned())).collect()
}

fn manifest(agent: RealAgent) -> String {
    let line = format!("kind = \"{}\"", agent.name());
    let found = blocks("toml").into_iter().find(|block| block.contains(&line));
    found.unwrap_or_else(|| panic!("docs/agents.md has no gateway for {agent:?}"))
}

/// `belljar run` with this manifest.
fn run<'a>(stage: &'a Stage<'_>, manifest: &str) -> Call<'a> {
    let file = stage.lab.make_file("settings/belljar.toml", manifest).display().to_string();
    stage.lab.make_file("settings/gemini-settings.json", &blocks("json")[0]);
    let words = ["--manifest", &file, "--workspace", ".:overlay", "--json", "--prompt"];
    let words = words.into_iter().chain(["Please do the work."]);
    stage.with_programs(stage.world.run(words))
}

fn works(stage: &Stage<'_>, manifest: &str, variable: &str) {
    stage.model.play([Turn::run("echo made > made.txt"), Turn::say("All is done.")]);
    let done = run(stage, manifest).env(variable, &stage.key).done();
    assert_eq!(done.json()["reason"], "exited", "{done}");
    assert_eq!(done.code(), 0, "{done}");
    stage.assert_script_is_played();
    for request in stage.model.requests() {
        assert!(request.has_key, "without the key: {}", request.target);
    }
    assert!(!done.out().contains(&stage.key), "{done}");
    let id = done.json()["id"].as_str().unwrap().to_owned();
    let patch = stage.patch(&id);
    assert!(patch.contains("made.txt") && patch.contains("+made\n"), "{patch}");
    stage.lab.assert_all_sound();
}

fn with_key(agent: RealAgent) {
    with_service_at(GATEWAY, agent, Place::JailAsUser, |stage| {
        works(stage, &manifest(agent), agent.key_variable());
    });
}

#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_claude_with_a_key() {
    with_key(RealAgent::Claude);
}

#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_codex_with_a_key() {
    with_key(RealAgent::Codex);
}

#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_gemini_with_a_key() {
    with_key(RealAgent::Gemini);
}

/// The page describes the difference: another variable, and `bearer`.
#[test]
#[ignore = "needs the real agents: cargo xtask test agents"]
fn real_claude_with_a_bearer_token() {
    with_service_at(GATEWAY, RealAgent::Claude, Place::JailAsUser, |stage| {
        let (variable, bearer) = ("env = \"ANTHROPIC_AUTH_TOKEN\"", "bearer = true");
        assert!(PAGE.contains(&format!("gets `{variable}` and `{bearer}` instead")));
        let manifest = manifest(RealAgent::Claude);
        let manifest = manifest.replace("env = \"ANTHROPIC_API_KEY\"", variable);
        let manifest = manifest.replace("header = \"x-api-key\"", bearer);
        works(stage, &manifest, "ANTHROPIC_AUTH_TOKEN");
    });
}
