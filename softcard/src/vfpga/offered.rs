//! Logic of other crates, by the names that images have for it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bitstreams::soft::{Logic as Named, Name};

use super::Logic;
use crate::Error;

/// Makes logic, out of reset, for the vFPGA of that number.
pub type Make = fn(u8) -> Box<dyn Logic>;

static OFFERED: Mutex<BTreeMap<Name, Make>> = Mutex::new(BTreeMap::new());

fn offered() -> MutexGuard<'static, BTreeMap<Name, Make>> {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets images of all software cards of this process name logic, from now on.
///
/// It is made on the thread of the cards, and goes from thread to thread with its card as a whole: nothing of it may be
/// bound to a thread, or be left in a variable of a thread's.
///
/// # Errors
/// [`Error::LogicName`] where no logic can have the name, or other logic has it.
pub fn offer(name: &str, make: Make) -> Result<(), Error> {
    let refused = |why: String| Error::LogicName { name: name.to_owned(), why };
    if let Named::Other(name) = name.parse().map_err(refused)? {
        if let Entry::Vacant(place) = offered().entry(name) {
            place.insert(make);
            return Ok(());
        }
    }
    Err(refused("there is logic of that name".into()))
}

/// The names of all logic that images may name.
#[must_use]
pub fn names() -> Vec<String> {
    let others = offered().keys().map(|name| name.as_str().to_owned()).collect::<Vec<_>>();
    Named::ALL.iter().map(ToString::to_string).chain(others).collect()
}

/// Whether there is such logic here.
#[must_use]
pub fn is_known(logic: Named) -> bool {
    match logic {
        Named::Vqe | Named::Stock => true,
        Named::Other(name) => offered().contains_key(&name),
    }
}

/// Makes logic of that name for the vFPGA of that number.
pub(super) fn make(name: Name, number: u8) -> Option<Box<dyn Logic>> {
    let make = offered().get(&name).copied();
    make.map(|make| make(number))
}
