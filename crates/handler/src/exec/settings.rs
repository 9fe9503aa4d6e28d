//! What the program of a kind is to do.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use roundelay_model::secret::Secret;

use crate::compare::Compare;

/// `handler.exec`. Its `Debug` shows no values of environment variables.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExecSettings {
    /// The program and its arguments. There is no shell.
    pub argv: Vec<String>,
    /// The whole environment that the program gets.
    pub env: BTreeMap<String, Secret>,
    /// The folder it runs in; the worker's own when absent.
    pub cwd: Option<PathBuf>,
    /// What the program may use.
    pub limits: LimitSettings,
    /// The programs that may run, and folders of such: `exec.allow`. Without it, any may.
    pub allow: Option<Vec<PathBuf>>,
    /// Whether the program's output says that the entity has changed: [`Compare::Hash`]. Nothing else does, besides
    /// words.
    pub compare: Compare,
}

/// `handler.exec.limits`: what is absent is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSettings {
    /// Bytes of memory that each process may ask for.
    pub memory: Option<u64>,
    /// Seconds of CPU time that each process may take.
    pub cpu: Option<u64>,
    /// Files that each process may have open.
    pub files: Option<u64>,
    /// Processes and threads that the worker's user may have when the program starts another.
    pub processes: Option<u64>,
}

impl LimitSettings {
    /// Whether there is a limit.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

impl fmt::Debug for ExecSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<&String> = self.env.keys().collect();
        f.debug_struct("ExecSettings")
            .field("argv", &self.argv)
            .field("env", &env)
            .field("cwd", &self.cwd)
            .field("limits", &self.limits)
            .field("allow", &self.allow)
            .field("compare", &self.compare)
            .finish()
    }
}
