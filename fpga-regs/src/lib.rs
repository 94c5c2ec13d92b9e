//! The card contract: Coyote shell registers and the verbs queue engine's formats

#![forbid(unsafe_code)]
