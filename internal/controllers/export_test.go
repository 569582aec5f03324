package controllers

// TrellisEnabled exports trellisEnabled.
var TrellisEnabled = trellisEnabled
