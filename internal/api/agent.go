package api

// AgentStatus answers PathStatus of an agent.
type AgentStatus struct {
	Status
	Services   []string          `json:"services"`   // whose connections carry cookies here
	Interfaces map[string]string `json:"interfaces"` // name -> XDP mode
	Problems   []string          `json:"problems"`   // what keeps the agent from its work, each with its remedy
}
