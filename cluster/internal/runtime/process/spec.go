package process

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Files in the folder of a container. They contain the full state of the container.
const (
	SpecFile    = "spec.json"    // the Spec
	StartedFile = "started.json" // written before the first instruction of the container's command
	ExitFile    = "exit.json"    // written when the container has ended or its start has failed
	socketFile  = "shim.sock"
	shimLog     = "shim.log"
)

// Spec describes how to start a container.
type Spec struct {
	Folder string // of the container

	Sandbox ID  // pause process of the Pod
	Join    int // namespaces of the sandbox to join (CLONE_NEW…)
	PIDOf   *ID // process whose PID namespace the container joins, instead of that of the sandbox
	New     int // new namespaces of the container (CLONE_NEW…)

	Program string // file to execute; it may differ from Args[0]
	Images  string // folder in which the command is looked up first
	Args    []string
	Env     []string
	Dir     string

	User       *User
	NoNewPrivs bool // no program can gain rights, for example by its setuid bit

	Mounts []Mount
	Shm    string // source of /dev/shm
	AllDev bool   // show the host's /dev

	Cgroups     []string
	OOMScoreAdj int
	Log         string
	TTY         bool
	Stdin       bool
	StdinOnce   bool
}

// Mount is a file or folder of the host with its path in the container.
type Mount struct {
	Source, Target      string
	ReadOnly, Recursive bool // Recursive: mounts below it are read-only too
}

// Started records the first process of a running container and its start time.
type Started struct {
	Init ID
	At   time.Time
}

// Exit is the exit status of a container.
type Exit struct {
	Code    int32
	Reason  string
	Message string
	At      time.Time
}

// startErrorCode is the exit code of a container that could not be started, as in other runtimes.
const startErrorCode = 128

// WriteFile atomically replaces a file with the JSON encoding of a value.
func WriteFile(name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	// Several processes may write the same file. The PID makes the name of the temporary file unique.
	next := filepath.Join(filepath.Dir(name), fmt.Sprintf(".%s.%d", filepath.Base(name), os.Getpid()))
	if err := os.WriteFile(next, data, 0o600); err != nil {
		_ = os.Remove(next)
		return err
	}
	return os.Rename(next, name)
}

// ReadFile decodes a file that WriteFile has written.
func ReadFile(name string, value any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, value)
}
