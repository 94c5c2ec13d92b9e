//! End-to-end tests with stock verbs applications
