//! The services that are compiled in.

use std::sync::Arc;

use crate::classifier::Classifier;
use crate::error::Error;
use crate::inspect::Inspect;
use crate::preprocess::Preprocess;
use crate::service::{About, PacketService};
use crate::settings::Settings;

/// Makes a service, and takes the settings that it knows.
type Make = fn(&mut Settings) -> Result<Arc<dyn PacketService>, Error>;

/// How each is made.
const NATIVE: [(About, Make); 3] = [
    (Classifier::ABOUT, |settings| Ok(Arc::new(Classifier::make(settings)?))),
    (Inspect::ABOUT, |settings| Ok(Arc::new(Inspect::make(settings)?))),
    (Preprocess::ABOUT, |_| Ok(Arc::new(Preprocess))),
];

/// Makes the service of that name with the settings that it knows; `None` where none of that name is compiled in.
pub(crate) fn native(
    name: &str,
    settings: &mut Settings,
) -> Option<Result<Arc<dyn PacketService>, Error>> {
    let (_, make) = NATIVE.iter().find(|(about, _)| about.name == name)?;
    Some(make(settings))
}

/// The services that are compiled in.
pub fn natives() -> impl Iterator<Item = About> {
    NATIVE.iter().map(|(about, _)| about.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_the_name_by_which_it_is_found_and_fits_a_chain_alone() {
        for about in natives() {
            let patterns = ("patterns".to_owned(), b"any".to_vec());
            let mut settings = Settings::new(vec![patterns]).unwrap();
            let service = native(&about.name, &mut settings).unwrap().unwrap();
            assert_eq!(*service.about(), about);
            crate::Chain::new(vec![service]).unwrap();
        }
    }
}
