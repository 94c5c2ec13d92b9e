//! The processes whose memory a card reaches by their ids.

use std::sync::Arc;

use hostmem::RemoteProcess;
use nix::unistd::Pid;

/// A process in the table of [`Processes`], as long as ranges of it are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

/// The processes whose memory is mapped, each with the number of its ranges.
#[derive(Debug, Default)]
pub(crate) struct Processes(Vec<Option<(Arc<RemoteProcess>, usize)>>);

impl Processes {
    /// Adds a range of a process.
    pub(crate) fn enter(&mut self, process: &Arc<RemoteProcess>) -> Slot {
        let known = |entry: &Option<(Arc<RemoteProcess>, usize)>| {
            entry.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, process))
        };
        let place = self.0.iter().position(known);
        let at = place.or_else(|| self.0.iter().position(Option::is_none)).unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(None);
        }
        if let Some(entry) = self.0.get_mut(at) {
            let (_, ranges) = entry.get_or_insert_with(|| (Arc::clone(process), 0));
            *ranges = ranges.saturating_add(1);
        }
        Slot(at)
    }

    /// Takes a range of a process away.
    pub(crate) fn leave(&mut self, Slot(at): Slot) {
        let Some(entry) = self.0.get_mut(at) else { return };
        if let Some((_, ranges)) = entry {
            *ranges = ranges.saturating_sub(1);
        }
        entry.take_if(|(_, ranges)| *ranges == 0);
    }

    /// Ends all access to the process's memory; gives its id.
    pub(crate) fn give_up(&self, Slot(at): Slot) -> Option<Pid> {
        let (process, _) = self.0.get(at)?.as_ref()?;
        process.give_up();
        Some(process.pid())
    }

    /// The id by which the process's memory is reached; `None` once it is not its own any more, or
    /// was given up.
    pub(crate) fn pid(&self, Slot(at): Slot, now: u64) -> Option<Pid> {
        let (process, _) = self.0.get(at)?.as_ref()?;
        process.is_itself(now).then(|| process.pid())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A process that runs, by its id.
    pub(crate) fn process(pid: u32) -> Arc<RemoteProcess> {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap());
        Arc::new(RemoteProcess::new(pid, hostmem::PidFd::open(pid).unwrap()))
    }

    #[test]
    fn processes_are_told_apart_and_counted_by_their_ranges() {
        let (one, two) = (process(std::process::id()), process(std::process::id()));
        let mut table = Processes::default();
        let first = table.enter(&one);
        assert_eq!(table.enter(&one), first);
        let second = table.enter(&two);
        assert_ne!(first, second);
        table.leave(first);
        assert!(table.pid(first, 0).is_some());
        table.leave(first);
        assert!(table.pid(first, 0).is_none() && table.pid(second, 0).is_some());
        assert_eq!(table.enter(&one), first);
    }
}
