//! What is wrong with a command line, in the same form from every program.

/// The complaint of a command-line parser (clap's, rendered) as one line that ends with where to
/// look for help.
///
/// Kept is what stands before the first empty line; usage and hints behind it go.
#[must_use]
pub fn one_sentence(rendered: &str) -> String {
    let complaint = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let lines = complaint.lines().map(str::trim).take_while(|line| !line.is_empty());
    let sentence = lines.collect::<Vec<_>>().join(" ");
    format!("{sentence} (see --help)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_of_several_lines_becomes_one() {
        let rendered = "error: the following required arguments were not provided:\n  <CMD>...\n\n\
            Usage: balboa run <CMD>...\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_sentence(rendered),
            "the following required arguments were not provided: <CMD>... (see --help)"
        );
        assert_eq!(one_sentence("no\n"), "no (see --help)");
    }
}
