//! Runs futures of the library for callers without an async runtime.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::{Builder, Runtime};

use crate::Error;

/// One for the whole program. It is never shut down: the sandboxes that it serves end with the program.
static RUNTIME: OnceLock<Runtime> = OnceLock::new();

fn runtime() -> Result<&'static Runtime, Error> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let made = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("belljar")
        .enable_all()
        .build()
        .map_err(Error::io("start a thread for sandboxes"))?;
    // Another thread may have been faster; then this one is shut down without waiting for it.
    if let Err(unused) = RUNTIME.set(made) {
        unused.shutdown_background();
    }
    let missing = || Error::io("start a thread for sandboxes")(io::Error::other("it is gone"));
    RUNTIME.get().ok_or_else(missing)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls the future on this thread, while the runtime's own thread serves connections and timers.
///
/// `Runtime::block_on` would panic in a thread of another runtime, and waiting for a task there could wait for ever.
/// Here nothing but the caller's own thread waits, whatever it is part of.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    block_on_value(future)?
}

pub(super) fn block_on_value<T>(future: impl Future<Output = T>) -> Result<T, Error> {
    let runtime = runtime()?;
    let _context = runtime.enter();
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return Ok(value),
            // A wake-up that came meanwhile makes this return at once.
            Poll::Pending => thread::park(),
        }
    }
}
