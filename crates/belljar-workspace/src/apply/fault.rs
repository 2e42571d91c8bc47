//! Points at which a test can make the process die.

/// Between two system calls that matter.
#[cfg(not(test))]
pub(super) fn point() {}

#[cfg(test)]
pub(super) use tests::point;

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    pub(crate) struct Died;

    type Visitor = Box<dyn FnMut()>;

    thread_local! {
        static VISITOR: Cell<Option<Visitor>> = const { Cell::new(None) };
    }

    /// Another process works between any two steps.
    pub(crate) fn visited<T>(visitor: impl FnMut() + 'static, work: impl FnOnce() -> T) -> T {
        VISITOR.with(|slot| slot.set(Some(Box::new(visitor))));
        let done = work();
        VISITOR.with(Cell::take);
        done
    }

    pub(in crate::apply) fn point() {
        if let Some(mut visitor) = VISITOR.with(Cell::take) {
            visitor();
            VISITOR.with(|slot| slot.set(Some(visitor)));
        }
        LEFT.with(|left| match left.get() {
            Some(0) => std::panic::resume_unwind(Box::new(Died)),
            Some(more) => left.set(Some(more - 1)),
            None => {}
        });
    }

    /// Does the work, and dies at the point of that number. `None`: it died.
    pub(crate) fn die_at<T>(number: u32, work: impl FnOnce() -> T) -> Option<T> {
        LEFT.with(|left| left.set(Some(number)));
        let done = catch_unwind(AssertUnwindSafe(work));
        LEFT.with(|left| left.set(None));
        match done {
            Ok(done) => Some(done),
            Err(what) if what.is::<Died>() => None,
            Err(other) => std::panic::resume_unwind(other),
        }
    }
}
