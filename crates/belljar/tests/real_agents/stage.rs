//! An agent, the place where it runs, and the model service that it talks to.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar::spec::{EventKind, env};
use belljar_testkit::{
    Actor, Call, Lab, LabWorld, ModelServer, RealAgent, TestEngine, Turn, TurnUsage, until,
};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    JailAsRoot,
    /// As `belljar-test`, in cgroups that belong to it.
    JailAsUser,
    /// The private engine of `cargo xtask`, with an image of Debian's minimal system.
    Docker,
}

impl Place {
    fn lab(self) -> Lab {
        match self {
            Self::JailAsRoot => Lab::new(Actor::Me),
            Self::JailAsUser => Lab::new(Actor::Delegated),
            Self::Docker => {
                let docker = TestEngine::Docker.access().expect("docker is not here");
                let image = std::env::var(env::TEST_IMAGE_DEBIAN).expect("no image of Debian");
                Lab::on(docker.with_image(image), Actor::Me)
            }
        }
    }
}

/// Everything that a scenario needs.
pub(crate) struct Stage<'a> {
    pub(crate) agent: RealAgent,
    pub(crate) lab: &'a Lab,
    pub(crate) world: LabWorld<'a>,
    pub(crate) model: ModelServer,
    /// The real one.
    pub(crate) key: String,
}

/// Runs a scenario, and removes what a failed one left.
pub(crate) fn with(agent: RealAgent, place: Place, scenario: impl Fn(&Stage<'_>)) {
    with_service_at(agent.api().host(), agent, place, scenario);
}

/// The same with the agent's service behind another name.
pub(crate) fn with_service_at(
    host: &str,
    agent: RealAgent,
    place: Place,
    scenario: impl Fn(&Stage<'_>),
) {
    let lab = place.lab();
    scenario(&Stage::new(host, agent, &lab));
}

impl<'a> Stage<'a> {
    fn new(host: &str, agent: RealAgent, lab: &'a Lab) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let key = format!("sk-real-{:x}-{:x}", std::process::id(), now.as_nanos());
        let (world, model) = lab.world_with_model_at(host, agent.api(), &key);
        lab.make_file("work/notes.txt", "first\nsecond\nthird\n");
        Self { agent, lab, world, model, key }
    }

    /// With the agents' programs on the path, and no key.
    pub(crate) fn with_programs<'c>(&self, call: Call<'c>) -> Call<'c> {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", RealAgent::programs().display());
        call.env("PATH", path)
    }

    fn with_key<'c>(&self, call: Call<'c>) -> Call<'c> {
        self.with_programs(call).env(self.agent.key_variable(), &self.key)
    }

    /// `belljar run` with the agent's preset, an overlay of the workspace, and these words.
    pub(crate) fn run(&self, words: &[&str]) -> Call<'_> {
        let agent = ["--no-config", "--workspace", ".:overlay", "--agent", self.agent.name()];
        self.with_key(self.world.run(agent.iter().chain(words)))
    }

    pub(crate) fn belljar(&self, words: &[&str]) -> Call<'_> {
        self.with_key(self.world.belljar(words))
    }

    /// A loop of one iteration in a session that a resumed run continues.
    pub(crate) fn session(&self, name: &str, script: impl IntoIterator<Item = Turn>) -> Value {
        self.model.play(script);
        let words =
            ["--json", "--name", name, "--prompt", "Please do the work.", "--max-iterations"];
        let more = ["1", "-c", "loop.session=\"continue\""];
        self.run(&[&words[..], &more].concat()).done().json()
    }

    pub(crate) fn show(&self, run: &str) -> Value {
        self.belljar(&["show", "--json", run]).done().json()
    }

    pub(crate) fn patch(&self, run: &str) -> String {
        self.belljar(&["diff", "-p", run]).done().expect(0).out()
    }

    /// The data of a run's events of one kind.
    pub(crate) fn events(&self, run: &str, kind: EventKind) -> Vec<Value> {
        let all = self.lab.events(run).into_iter();
        all.filter(|event| event.kind == kind).map(|event| event.data).collect()
    }

    /// Every request that arrived had the real key, and nothing but the agent's own service was looked up.
    #[track_caller]
    pub(crate) fn assert_only_its_service_was_used(&self) {
        self.assert_only_this_host_was_used(self.agent.api().host());
    }

    #[track_caller]
    pub(crate) fn assert_only_this_host_was_used(&self, host: &str) {
        let requests = self.model.requests();
        assert!(!requests.is_empty(), "the agent has not reached its service");
        for request in &requests {
            assert!(request.has_key, "without the key: {}", request.target);
        }
        for query in self.world.seen().queries.keys() {
            assert!(query.ends_with(&format!(" {host}")), "looked up: {query}");
        }
    }

    /// The model was asked once for each turn of its script.
    #[track_caller]
    pub(crate) fn assert_script_is_played(&self) {
        assert_eq!(self.model.left(), 0, "turns that nobody asked for; {:#?}", self.targets());
    }

    pub(crate) fn targets(&self) -> Vec<(String, bool)> {
        let requests = self.model.requests();
        requests.into_iter().map(|one| (one.target, one.in_conversation)).collect()
    }

    /// Starts a loop in the background and waits until the model has been asked for a turn that never comes.
    pub(crate) fn start_and_hang(&self, name: &str, script: impl IntoIterator<Item = Turn>) {
        self.model.play(script.into_iter().chain([Turn::Hang]));
        let words = ["-d", "--name", name, "--prompt", "Please do the work.", "--max-iterations"];
        self.run(&[&words[..], &["1"]].concat()).done().expect(0);
        let hangs = self.model.is_hanging(Duration::from_secs(60));
        assert!(hangs, "{:#?}\n{:#}", self.targets(), self.show(name));
    }

    pub(crate) fn stop(&self, name: &str) {
        self.belljar(&["stop", "-t", "0", name]).done().expect(0);
        let is_over = || self.show(name)["state"] != "running";
        assert!(until(Duration::from_secs(20), is_over), "{:#}", self.show(name));
    }
}

/// What each turn costs unless a test says otherwise.
pub(crate) const USAGE: TurnUsage = TurnUsage { input_tokens: 100, output_tokens: 20 };
