"""telens diagnose on values that grow step by step, and on bursts of gradients."""

from recorded_training import LAYERS, STEPS, where


def test_growth_starts_at_its_first_step(findings, training):
    """The activations grow slowly before they grow by a factor in each iteration."""
    creeping = [22, 22, 22, 22, 23, 26, 25, 28, 28, 30, 32, 32, 33, 34, 35, 35]
    for step in range(STEPS):
        size = creeping[step] if step < 16 else creeping[-1] * 1.6 ** (step - 15)
        training.put(step, LAYERS[2], "activation", size)
    assert where(findings(training)[0]) == ("activation_jump", LAYERS[2], "activation", 16)


def test_growth_continues_after_one_step_back(findings, training):
    """In one iteration a batch also changes the next layer, so their ratio does not grow there."""
    for step in range(14, 26):
        for layer in LAYERS[:2]:
            training.scale(layer, "gradient", step, 2.0)
    training.scale(LAYERS[2], "gradient", 18, 2.6, last=18)
    told = where(findings(training)[0])
    assert told == ("exploding_gradients", "layers.0.fc2", "gradient", 14)


def test_fading_burst_is_not_an_explosion(findings, training):
    for layer in LAYERS[:2]:
        training.scale(layer, "gradient", 14, 20, last=19)
        training.scale(layer, "gradient", 20, 4, last=23)
    assert findings(training) == []


def test_an_explosion_that_pauses_for_an_iteration_is_one(findings, training):
    for layer in LAYERS[:2]:
        training.scale(layer, "gradient", 14, 20)
        training.scale(layer, "gradient", 19, 1 / 5, last=19)
    told = where(findings(training)[0])
    assert told == ("exploding_gradients", "layers.0.fc2", "gradient", 14)
