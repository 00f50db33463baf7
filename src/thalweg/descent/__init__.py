"""The iteration x⁺ = argmin ⟨ĝ,x⟩ + h(x) + D(x‖x_k)/β, its parts, and the loop that runs it."""
