//! Reads what the link check needs of Markdown: links, code spans and the anchors of headings.

/// A link's destination, or the text of a code span, with its line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) line: usize,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) links: Vec<Spot>,
    pub(super) spans: Vec<Spot>,
    pub(super) anchors: Vec<String>,
}

impl Document {
    pub(super) fn read(content: &str) -> Self {
        let mut document = Self::default();
        let mut fence: Option<&str> = None;
        for (at, line) in content.lines().enumerate() {
            let start = line.trim_start();
            let marker = ["```", "~~~"].into_iter().find(|marker| start.starts_with(marker));
            match (fence, marker) {
                (Some(open), Some(marker)) if open == marker => fence = None,
                (None, Some(marker)) => fence = Some(marker),
                (Some(_), _) => {}
                (None, None) => document.read_line(at + 1, line),
            }
        }
        document
    }

    fn read_line(&mut self, at: usize, line: &str) {
        if line.starts_with('#') {
            self.add_anchor(line.trim_start_matches('#').trim());
        }
        let prose = self.take_spans(at, line);
        // `[text](destination)`; a title behind the destination is not used here.
        for (start, _) in prose.match_indices("](") {
            let rest = &prose[start + 2..];
            if let Some(end) = rest.find([')', ' ']) {
                self.links.push(Spot { line: at, text: rest[..end].to_owned() });
            }
        }
        // `[name]: destination`
        if let Some((name, rest)) = prose.split_once("]: ")
            && name.starts_with('[')
            && let Some(destination) = rest.split_whitespace().next()
        {
            self.links.push(Spot { line: at, text: destination.to_owned() });
        }
    }

    /// Collects the code spans, and returns the line without them: what looks like a link in code is none.
    fn take_spans(&mut self, at: usize, line: &str) -> String {
        let mut prose = String::new();
        for (number, part) in line.split('`').enumerate() {
            match number % 2 {
                0 => prose.push_str(part),
                _ => self.spans.push(Spot { line: at, text: part.to_owned() }),
            }
        }
        prose
    }

    /// As GitHub makes them; of two equal headings the second ends in `-1`.
    fn add_anchor(&mut self, heading: &str) {
        let shown = without_destinations(heading);
        let anchor: String = shown
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let twin = |one: &String| *one == anchor || one.starts_with(&format!("{anchor}-"));
        let number = self.anchors.iter().filter(|one| twin(one)).count();
        if number > 0 && self.anchors.contains(&anchor) {
            self.anchors.push(format!("{anchor}-{number}"));
        } else {
            self.anchors.push(anchor);
        }
    }
}

/// `[text](destination)` is shown as its text.
fn without_destinations(heading: &str) -> String {
    let mut shown = String::new();
    let mut rest = heading;
    while let Some((before, behind)) = rest.split_once("](") {
        shown.push_str(before);
        rest = behind.split_once(')').map_or("", |(_, rest)| rest);
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(spots: &[Spot]) -> Vec<&str> {
        spots.iter().map(|spot| spot.text.as_str()).collect()
    }

    #[test]
    fn links_spans_and_anchors_are_read() {
        let document = Document::read(
            "# A `run [X]` · two\n[a](b.md) and [`c`](d.md#e \"title\") `src/x.rs`\n\
             ```\n[no](link) `no`\n# no\n```\n`[no](link)`\n[name]: f.md\n## Two\n## Two\n",
        );
        assert_eq!(texts(&document.links), ["b.md", "d.md#e", "f.md"]);
        assert_eq!(texts(&document.spans), ["run [X]", "c", "src/x.rs", "[no](link)"]);
        assert_eq!(document.anchors, ["a-run-x--two", "two", "two-1"]);
        assert_eq!(document.links[2].line, 8);
    }
}
