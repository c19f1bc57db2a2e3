package e2e

var legacyLives []*life
