//! Hides panics of libraries that are caught and become errors.

use std::cell::RefCell;

thread_local! {
    /// The panic that the hook has held back while this thread runs [`quietly`], or `None` outside of it.
    static HELD_BACK: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Calls `run`. Panics that `run` itself catches are not printed to stderr. A panic that `run` does not catch is
/// printed once it leaves `run`.
pub fn quietly<T>(run: impl FnOnce() -> T) -> T {
    struct Guard(Option<String>);
    impl Drop for Guard {
        fn drop(&mut self) {
            let held_back = HELD_BACK.replace(self.0.take());
            if std::thread::panicking()
                && let Some(text) = held_back
            {
                eprintln!("{text}");
            }
        }
    }
    let _guard = Guard(HELD_BACK.replace(Some(String::new())));
    run()
}

/// Stores a panic's text instead of printing it, if the current thread is inside [`quietly`]. Returns whether the text
/// was stored.
pub fn hold_back(text: &dyn std::fmt::Display) -> bool {
    HELD_BACK.with_borrow_mut(|held_back| {
        let wanted = held_back.is_some();
        if wanted {
            *held_back = Some(text.to_string());
        }
        wanted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_runs_quietly_is_held_back() {
        assert!(!hold_back(&"outside"));
        assert!(quietly(|| hold_back(&"inside")));
        assert!(quietly(|| quietly(|| 3) == 3 && hold_back(&"still inside")));
        assert!(!hold_back(&"outside again"));
    }
}
