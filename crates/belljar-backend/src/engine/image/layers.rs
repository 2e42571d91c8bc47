//! How far a pull has come, added up over the layers that the engine has reported so far.

use std::collections::HashMap;

use bollard::models::ProgressDetail;

#[derive(Debug, Default)]
pub(super) struct Layers {
    known: HashMap<String, Layer>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Layer {
    fetched: u64,
    of: u64,
}

impl Layers {
    /// One line of the engine's. Gives bytes so far and the total, if the line was about a layer.
    pub(super) fn update(
        &mut self,
        id: Option<&str>,
        status: Option<&str>,
        progress: Option<&ProgressDetail>,
    ) -> Option<(u64, u64)> {
        let (id, status) = (id?, status?);
        let bytes = |number: Option<i64>| u64::try_from(number.unwrap_or(0)).unwrap_or(0);
        match status {
            // What is unpacked was fetched before; its numbers count other bytes.
            "Downloading" | "Copying blob" => {
                let layer = self.known.entry(id.to_owned()).or_default();
                layer.fetched = bytes(progress.and_then(|detail| detail.current));
                layer.of = bytes(progress.and_then(|detail| detail.total)).max(layer.fetched);
            }
            "Download complete" | "Verifying Checksum" | "Pull complete" => {
                let layer = self.known.get_mut(id)?;
                layer.fetched = layer.of;
            }
            _ => return None,
        }
        let sum = |of: fn(&Layer) -> u64| self.known.values().map(of).fold(0, u64::saturating_add);
        Some((sum(|layer| layer.fetched), sum(|layer| layer.of)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_add_up_and_unpacking_does_not_count() {
        let mut layers = Layers::default();
        let at = |current, total| ProgressDetail { current: Some(current), total: Some(total) };
        let mut update = |id, status, detail: ProgressDetail| {
            layers.update(Some(id), Some(status), Some(&detail))
        };
        assert_eq!(update("a", "Pulling fs layer", at(0, 0)), None);
        assert_eq!(update("a", "Downloading", at(10, 100)), Some((10, 100)));
        assert_eq!(update("b", "Downloading", at(5, 50)), Some((15, 150)));
        assert_eq!(update("a", "Download complete", at(0, 0)), Some((105, 150)));
        assert_eq!(update("a", "Extracting", at(1, 1000)), None);
        // A hostile engine's numbers.
        assert_eq!(update("c", "Downloading", at(-5, i64::MIN)), Some((105, 150)));
        assert_eq!(update("d", "Downloading", at(9, 1)), Some((114, 159)));
    }
}
