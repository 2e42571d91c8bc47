//! For tests of images: names that are taken away again, and a registry.

mod registry;

use std::path::PathBuf;
use std::sync::Mutex;

use belljar_testkit::{Done, EngineAccess, http, marker};

pub(crate) use registry::{Layer, Registry, auth};

/// A name for an image that no other test has. What an engine has by it goes with this.
#[derive(Debug)]
pub(crate) struct TestImage {
    pub(crate) name: String,
    socket: PathBuf,
    /// Those that had the name before.
    ids: Mutex<Vec<String>>,
}

impl TestImage {
    pub(crate) fn new(engine: &EngineAccess) -> Self {
        Self::named(engine, format!("belljar-test/image-{}", marker()))
    }

    pub(crate) fn named(engine: &EngineAccess, name: String) -> Self {
        Self { name, socket: engine.socket().to_owned(), ids: Mutex::default() }
    }

    /// What a build printed: an id, or an object with one.
    pub(crate) fn note(&self, done: &Done) {
        let out = done.out();
        let object: Option<serde_json::Value> = serde_json::from_str(&out).ok();
        let id = object.and_then(|object| object["id"].as_str().map(str::to_owned));
        let id = id.unwrap_or_else(|| out.trim().to_owned());
        if id.starts_with("sha256:") {
            self.ids.lock().unwrap().push(id);
        }
    }

    pub(crate) fn remove(&self) {
        let ids = std::mem::take(&mut *self.ids.lock().unwrap());
        let names = [self.name.clone(), format!("localhost/{}", self.name)];
        for name in names.into_iter().chain(ids) {
            let _ = http::delete(&self.socket, &format!("/images/{name}?force=1")); // if it is there
        }
    }
}

impl Drop for TestImage {
    fn drop(&mut self) {
        self.remove();
    }
}
