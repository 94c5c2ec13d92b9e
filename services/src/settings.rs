//! The settings of services, which they get when they are attached.

use std::collections::BTreeMap;

use crate::error::Error;

/// Values by their names, for the services of a chain; each service takes those that it knows.
#[derive(Clone, Debug, Default)]
pub struct Settings(BTreeMap<String, Vec<u8>>);

impl Settings {
    /// Makes settings of names and values.
    ///
    /// # Errors
    /// [`Error::SettingTwice`] where a name has two.
    pub fn new(all: Vec<(String, Vec<u8>)>) -> Result<Self, Error> {
        let mut settings = BTreeMap::new();
        for (name, value) in all {
            if settings.contains_key(&name) {
                return Err(Error::SettingTwice(name));
            }
            settings.insert(name, value);
        }
        Ok(Self(settings))
    }

    /// Takes the value of that name out, if there is one.
    pub(crate) fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        self.0.remove(name)
    }

    /// Checks that all have been taken.
    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.0.into_keys().next() {
            Some(name) => Err(Error::Setting(name)),
            None => Ok(()),
        }
    }
}
