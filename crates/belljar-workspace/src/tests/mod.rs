//! Layers made by the kernel, and layers that no kernel would make.

mod copies;
mod hostile;
mod layers;
mod patches;
mod random;
mod support;
mod withheld;
