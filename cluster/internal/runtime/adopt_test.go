package runtime

const nodeFolder = "TRELLIS_TEST_NODE"

func nodeToBeKilled(string) {}
