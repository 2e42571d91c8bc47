//! Runs belljar in the test network of `belljar-prove`, so that a run reaches only the test's servers.

use std::fs;
use std::path::Path;

use belljar::prove::world::{FORWARDS, Maker, ServerCounts, World};
use belljar::spec::EventKind;
use serde_json::Value;

use super::{Call, Lab, ModelApi, ModelServer};

/// Inside, where the workspace has a copy of it.
pub const WORLD_CA: &str = "/workspace/world-ca.pem";

/// How a connection to a host in TLS is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsHandling {
    /// In a tunnel that the proxy cannot look into: the client trusts the server's authority.
    Tunnel,
    /// The proxy opens it: the client trusts the run's authority, the proxy the server's.
    Opened,
}

impl TlsHandling {
    pub const ALL: [Self; 2] = [Self::Tunnel, Self::Opened];

    /// As events of the record name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tunnel => "connect",
            Self::Opened => "intercepted",
        }
    }
}

pub struct LabWorld<'a> {
    lab: &'a Lab,
    world: World,
}

impl Lab {
    /// Started as the user that starts the runs.
    pub fn world(&self) -> LabWorld<'_> {
        self.make_directory("world");
        self.start_world()
    }

    /// The same with a model service at its own name.
    pub fn world_with_model(&self, api: ModelApi, key: &str) -> (LabWorld<'_>, ModelServer) {
        self.world_with_model_at(api.host(), api, key)
    }

    /// The same with the service behind another name: a gateway.
    pub fn world_with_model_at(
        &self,
        host: &str,
        api: ModelApi,
        key: &str,
    ) -> (LabWorld<'_>, ModelServer) {
        let socket = self.make_directory("world").join("model.sock");
        let server = ModelServer::start(&socket, api, key).unwrap();
        let line = format!("{host} {}\n", socket.display());
        self.make_file(Path::new("world").join(FORWARDS), line);
        (self.start_world(), server)
    }

    fn start_world(&self) -> LabWorld<'_> {
        let directory = self.path("world");
        self.make_directory("world/files");
        let maker = self
            .actor
            .user()
            .map_or(Maker::Caller, |user| Maker::User { uid: user.uid, gid: user.gid });
        // By a name of its own, so that it is not taken for a process of a run's.
        let program = self.path("bin/world");
        fs::hard_link(&self.exe, &program).unwrap();
        let world = World::start(&program, &directory, maker).unwrap();
        self.make_file("work/world-ca.pem", fs::read(world.authority()).unwrap());
        LabWorld { lab: self, world }
    }

    /// The egress events in the newest run's record.
    pub fn egress(&self, kind: EventKind) -> Vec<Value> {
        let id = self.runs().pop().unwrap();
        let of_kind = self.events(&id).into_iter().filter(|event| event.kind == kind);
        of_kind.map(|event| event.data).collect()
    }
}

impl LabWorld<'_> {
    /// `belljar run WORDS…` in it. The proxy trusts the world's servers.
    pub fn run<W: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Call<'_> {
        self.world.reset().unwrap();
        self.enter(self.lab.run(words))
    }

    /// `belljar WORDS…` in it, with the counts so far.
    pub fn belljar<W: AsRef<std::ffi::OsStr>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> Call<'_> {
        self.enter(self.lab.belljar(words))
    }

    /// Any command in it, with the counts so far.
    pub fn enter<'c>(&self, call: Call<'c>) -> Call<'c> {
        call.inside(self.world.wrapper()).env("SSL_CERT_FILE", self.world.authority())
    }

    /// The same with `ok.example` allowed, in that way, and a script.
    pub fn sh(&self, way: TlsHandling, more: &[&str], script: &str) -> Call<'_> {
        let mut words = vec!["--no-config", "--allow-host", "ok.example"];
        if way == TlsHandling::Opened {
            words.extend(["-c", "network.intercept=[\"ok.example\"]"]);
        }
        words.extend(more);
        words.extend(["--", "sh", "-c", script]);
        self.run(words)
    }

    /// The process whose network it is.
    pub fn pid(&self) -> u32 {
        let wrapper = self.world.wrapper();
        wrapper.last().and_then(|pid| pid.to_str()).and_then(|pid| pid.parse().ok()).unwrap()
    }

    pub fn seen(&self) -> ServerCounts {
        self.world.seen().unwrap()
    }

    /// A file that the servers have at `/files/RELATIVE`.
    pub fn serve(&self, relative: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        self.lab.make_file(Path::new("world/files").join(relative), content);
    }

    /// Where such files lie.
    pub fn files(&self) -> std::path::PathBuf {
        self.world.files()
    }
}
